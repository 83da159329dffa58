"""Galley compared with the systems a user would choose instead: same checkpoint, same work, one run."""
