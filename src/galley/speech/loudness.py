"""Evens out loudness block by block with FFmpeg's dynamic audio normalizer."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import av
import av.filter
import numpy as np
from av.audio.frame import AudioFrame
from numpy.typing import NDArray

_FILTER = ("dynaudnorm", "framelen=500:gausssize=15:maxgain=20")
"""The gain follows the loudest half second of about seven (15 frames), and is at most 26 dB."""


def normalized(
    blocks: Iterable[NDArray[np.float32]], sample_rate: int
) -> Iterator[NDArray[np.float32]]:
    """Yield the samples with quiet parts amplified: the same number, a few seconds behind the input."""
    graph = av.filter.Graph()
    source = graph.add_abuffer(format="fltp", sample_rate=sample_rate, layout="mono")
    sink = graph.add("abuffersink")
    graph.link_nodes(source, graph.add(*_FILTER), sink).configure()
    position = 0
    for block in itertools.chain(blocks, [None]):
        if block is None:
            graph.push(None)
        else:
            frame = AudioFrame.from_ndarray(block[None], format="fltp", layout="mono")
            frame.sample_rate, frame.pts = sample_rate, position
            position += len(block)
            graph.push(frame)
        yield from _pulled(graph)


def _pulled(graph: Any) -> Iterator[NDArray[np.float32]]:
    while True:
        try:
            frame = graph.pull()
        except (av.error.BlockingIOError, av.error.EOFError):
            return
        yield frame.to_ndarray()[0].astype(np.float32)
