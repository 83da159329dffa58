"""The loss from quantization: a model compared with a reference model, on the same tokens."""
