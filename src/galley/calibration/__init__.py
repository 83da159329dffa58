"""A model's values on given texts: its logits, the inputs of its layers, its loss from quantization."""
