"""Recorded calls: transcripts by speaker, redaction, reports and tickets."""
