"""Blocks of samples: joined, brought to one sample rate."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator

import numpy as np
import soxr
from numpy.typing import NDArray

from galley.speech.features import SAMPLE_RATE as SAMPLE_RATE
from galley.speech.sources import RawPcm as RawPcm
from galley.speech.sources import Samples as Samples
from galley.speech.sources import Source as Source


def silence_lengths(seconds: float, rate: int) -> Iterator[int]:
    """Yield the number of samples in ``seconds``, in parts of at most one second."""
    samples = round(seconds * rate)
    for first in range(0, samples, rate):
        yield min(rate, samples - first)


def resampled(
    blocks: Iterable[tuple[int, Samples]], to_rate: int, channels: int = 1
) -> Iterator[Samples]:
    """Yield blocks at one sample rate from blocks whose rate may change midway, as in joined files.

    Args:
        blocks: sample rate and samples of each, float32 ``[samples]``, or ``[samples, channels]``.
        to_rate: the new sample rate, in Hz.
        channels: number of channels.
    """
    nothing = np.empty(0 if channels == 1 else (0, channels), np.float32)
    for rate, run in itertools.groupby(blocks, key=operator.itemgetter(0)):
        if rate == to_rate:
            yield from (block for _, block in run)
            continue
        resampler = soxr.ResampleStream(rate, to_rate, channels, dtype="float32", quality="HQ")
        for _, block in run:
            yield from _unless_empty(resampler.resample_chunk(block))
        yield from _unless_empty(resampler.resample_chunk(nothing, last=True))


def joined(frames: Iterable[NDArray[np.float32]], size: int) -> Iterator[NDArray[np.float32]]:
    """Join frames (about 20 ms each) to blocks ``[channels, samples]`` of at least ``size`` samples."""
    waiting: list[NDArray[np.float32]] = []
    count = 0
    for frame in frames:
        waiting.append(frame)
        count += frame.shape[1]
        if count >= size:
            yield np.concatenate(waiting, axis=1)
            waiting, count = [], 0
    if count:
        yield np.concatenate(waiting, axis=1)


def _unless_empty(block: Samples) -> Iterator[Samples]:
    if len(block):
        yield block
