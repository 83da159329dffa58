"""Descriptions of model families, one file each; ``registry.py`` finds them by ``model_type``."""
