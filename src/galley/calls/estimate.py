"""The word error rate of a call, estimated from what the recognizer was unsure of and from the sound.

A logistic regression, fitted by ``recipes/wer.py`` on calls whose words are known.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Weights = Sequence[float] | NDArray[np.float64]
