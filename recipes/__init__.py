"""How the bundled models were made: generated text and speech, training, held-out sets.

They are not part of the package: run them from a checkout, with the extra `train` installed.
"""
