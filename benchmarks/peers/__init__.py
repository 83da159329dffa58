"""Galley compared with the systems that users would otherwise choose: same checkpoint, same work."""
