"""Galley beside the systems that a user would pick instead: same checkpoint, same work, one run."""
