"""Rounding of weights: to nearest, with clip search, GPTQ and AWQ."""
