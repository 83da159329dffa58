"""Checkpoints written by llm-compressor 0.14.0.1 (`make.py`) and GPTQModel 7.7.0 (`make_gptqmodel.py`)."""
