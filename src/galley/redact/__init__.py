"""Find personal and payment data in text: spans of characters, each of one kind.

The rules work on transcripts as well as on typed text: numbers may be spoken ("four five double oh"), and
may continue after another speaker's acknowledgment. This package knows neither words with times nor
audio; :mod:`galley.speech.redaction` applies the spans to transcripts.
"""
