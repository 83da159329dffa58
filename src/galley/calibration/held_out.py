"""Separation of the texts that a method calibrates with from those on which its loss is measured."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from galley.errors import SettingsError

Windows = list[list[int]]

HELD_OUT: Final = 8
"""One text in this many is held out of calibration to measure the loss."""


class Texts(NamedTuple):
    """Token ids of texts. No text is in both parts.

    Attributes:
        calibration: texts that methods see.
        measured: texts on which the loss is measured.
    """

    calibration: Windows
    measured: Windows


def held_apart(windows: Sequence[Sequence[int]]) -> Texts:
    """Hold out one text in :data:`HELD_OUT` for the measurement.

    Raises:
        SettingsError: fewer than two texts differ.
    """
    others = [window for i, window in enumerate(windows) if i % HELD_OUT]
    return apart(others, windows[::HELD_OUT])


def all_measured(windows: Sequence[Sequence[int]]) -> Texts:
    """Use all texts for the measurement, for methods without calibration; one text is then enough."""
    return Texts([], [list(window) for window in windows])


def apart(calibration: Sequence[Sequence[int]], measured: Sequence[Sequence[int]]) -> Texts:
    """Return both, without calibration texts that are also measured.

    Raises:
        SettingsError: nothing is left to calibrate with, or nothing is measured.
    """
    seen = {tuple(window) for window in measured}
    left = [list(window) for window in calibration if tuple(window) not in seen]
    if not left or not measured:
        raise SettingsError(
            f"too little text: {len(measured)} texts are held out to measure the loss, which leaves "
            f"{len(calibration)} for calibration; give more text, or a smaller --context"
        )
    return Texts(left, [list(window) for window in measured])


def first_texts(windows: Windows, tokens: int) -> Windows:
    """Return the first texts, up to this many tokens, but at least one."""
    ends = np.cumsum([len(window) for window in windows])
    return windows[: max(1, int(np.searchsorted(ends, tokens, side="right")))]
