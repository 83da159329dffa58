"""Peers that quantise: a script each, for the python of its virtual environment."""
