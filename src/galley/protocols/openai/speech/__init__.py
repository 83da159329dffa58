"""``/v1/audio/speech``."""
