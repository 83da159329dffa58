"""Checkpoints that llm-compressor 0.14.0.1 wrote (`make.py`), to be read as they come from users."""
