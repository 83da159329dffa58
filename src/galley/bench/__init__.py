"""Measurements of the machine and of the engine on it, and the computation of their reports."""
