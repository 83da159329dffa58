"""The model repository extension of the Open Inference Protocol."""
