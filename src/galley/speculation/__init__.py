"""Draft tokens: proposes next tokens and decides how many are worth verifying; see ``speculator.py``."""
