"""Guesses of the tokens that come next, and how many of them are worth verifying; see ``speculator.py``."""
