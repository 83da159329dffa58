"""The generate extension of the Open Inference Protocol: texts of language models."""
