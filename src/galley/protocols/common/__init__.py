"""What all protocols share and is not HTTP: bodies as JSON, validation, messages, errors."""
