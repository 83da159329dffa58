"""Stored answers: keys, entries, stores, shared generations, and questions that mean the same."""
