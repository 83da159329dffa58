"""Measurements of the machine and of the engine on it, and the arithmetic of their reports."""
