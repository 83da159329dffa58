"""Diarization: the turns of a recording's speakers, and transcripts by speaker."""
