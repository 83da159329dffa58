"""A model's values on given texts: its logits, what reaches its layers, what quantisation costs it."""
