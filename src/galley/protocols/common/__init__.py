"""Code shared by all protocols other than HTTP: JSON bodies, validation, messages, errors."""
