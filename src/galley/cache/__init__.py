"""Answers kept and given again: keys, entries, stores, and requests that share one generation."""
