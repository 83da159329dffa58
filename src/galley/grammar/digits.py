"""Limits on the digits of JSON numbers where a grammar has no bound, so that numbers end.

A grammar of JSON lets a number continue forever, and a weak model does so until its tokens are used up.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer

INTEGER: Final = 19
"""Digits of the largest integers of 64 bits."""

SIGNIFICANT: Final = 17
"""Digits that distinguish any float64 from all others."""

EXPONENT: Final = 3

_DIGITS: Final = b"0123456789"


class DigitRun(NamedTuple):
    """The digits at the end of a text.

    Attributes:
        digits: number of digits.
        most: maximum number of digits.
        zero: whether it is a single 0.
    """

    digits: int = 0
    most: int = INTEGER
    zero: bool = False

    def after(self, text: bytes) -> "DigitRun":
        """Return the run at the end of the text after ``text`` is appended."""
        digits, most, zero = self
        for byte in text:
            if byte in _DIGITS:
                digits, zero = digits + 1, byte == _DIGITS[0] and digits == 0
            elif byte == ord("."):
                most = SIGNIFICANT if zero else max(1, SIGNIFICANT - digits)
                digits, zero = 0, False
            elif byte in b"eE":
                digits, most, zero = 0, EXPONENT, False
            elif byte not in b"+-" or digits or most != EXPONENT:
                digits, most, zero = 0, INTEGER, False
        return DigitRun(digits, most, zero)


class Digits:
    """The effect of each token of a vocabulary on a run of digits."""

    def __init__(self, vocabulary: LLTokenizer) -> None:
        """Decode each token of the vocabulary once: 0.1 s for 128,000."""
        self._bytes = [vocabulary.decode_bytes([token]) for token in range(vocabulary.vocab_size)]
        leading = [len(text) - len(text.lstrip(_DIGITS)) for text in self._bytes]
        self._leading = np.array(leading, dtype=np.int32)
        self._longest = max(leading, default=0)
        [self._quote, *_] = vocabulary.tokenize_bytes(b'"')

    def after(self, run: DigitRun, token: int) -> DigitRun:
        """Return the run after one more token."""
        return run.after(self._bytes[token])

    def limit(self, mask: npt.NDArray[np.float32], run: DigitRun) -> None:
        """Forbid tokens that would make a number too long, if any other token is allowed.

        Args:
            mask: [vocab or more] 0 for each token that may come next, else -inf; changed in place.
            run: the digits at the end of the text so far.
        """
        room = run.most - run.digits
        # A quotation mark can occur within a string or outside JSON, but not after a number's digit.
        if not run.digits or room >= self._longest or mask[self._quote] == 0:
            return
        shorter = mask.copy()
        shorter[: len(self._leading)][self._leading > room] = -np.inf
        if (shorter == 0).any():
            mask[:] = shorter
