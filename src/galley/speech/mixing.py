"""Converts frames of any sample type and any number of channels to mono float32 samples."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from av.audio.frame import AudioFrame
from numpy.typing import NDArray

_DTYPES: Final = {"u8": "u1", "s16": "i2", "s32": "i4", "flt": "f4", "dbl": "f8"}
"""FFmpeg's name of a sample type -> numpy's."""
_CENTER: Final = "FC"
_NO_SPEECH: Final = ("LFE", "LFE2")
_FRONT: Final = ("FL", "FR", "FLC", "FRC")
_CANCELLED: Final = 0.1
"""Share of its channels' energy below which a mix has cancelled sound of opposite phase."""


def channels_of(frame: AudioFrame) -> NDArray[np.float32]:
    """Return the frame's samples, float32 ``[channels, samples]``; full scale of integers becomes 1.

    PyAV's ``AudioFrame.to_ndarray`` must not be used: with eight or more planes it reads beyond the frame's
    list of planes, which crashes the process.
    """
    channels = frame.layout.nb_channels
    planes = frame.planes[: channels if frame.format.is_planar else 1]
    dtype, count = _DTYPES[frame.format.packed.name], frame.samples * channels // len(planes)
    samples = np.stack([np.frombuffer(memoryview(plane), dtype, count) for plane in planes])
    if not frame.format.is_planar:
        samples = samples.reshape(-1, channels).T
    values = samples.astype(np.float32)
    if np.issubdtype(samples.dtype, np.floating):
        return values
    half = np.float32(2 ** (8 * samples.dtype.itemsize - 1))
    if samples.dtype == np.uint8:
        values -= half
    values /= half
    return values


def weights_of(names: Sequence[str]) -> NDArray[np.float32]:
    """Return each channel's weight in the mix; float32 ``[channels]`` with sum 1.

    A layout with a center channel, as in films, carries the dialog there. The subwoofer channel has
    weight 0. Channels without a position have equal weights.

    Args:
        names: FFmpeg's names of the channels' positions.
    """
    weights = np.array([_weight(name, _CENTER in names) for name in names], np.float32)
    if not weights.any():
        weights[:] = 1
    weights /= weights.sum()
    return weights


def _weight(name: str, has_center: bool) -> float:
    if name in _NO_SPEECH:
        return 0.0
    if not has_center or name == _CENTER:
        return 1.0
    return 0.5 if name in _FRONT else 0.25


def mix(block: NDArray[np.float32], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mix ``block`` (``[channels, samples]``) to mono samples.

    Where channels cancel each other, those in opposite phase to a loud one are inverted first.
    """
    mono: NDArray[np.float32] = weights @ block
    energies = weights**2 * np.einsum("cn,cn->c", block, block)
    if mono @ mono < _CANCELLED * energies.sum():
        # Use the first loud channel, so that the choice is stable from block to block.
        loud = int((energies > energies.max() / 2).argmax())
        opposed = block @ block[loud] < 0
        mono = np.where(opposed, -weights, weights) @ block
    return mono
