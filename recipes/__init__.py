"""How the bundled models were made: generated text and speech, training, held-out sets.

No part of the package: run from a checkout, with the extra `train` installed.
"""
