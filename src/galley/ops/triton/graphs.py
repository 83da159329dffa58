"""Steps in which every sequence decodes one token, captured as CUDA graphs and replayed.

A graph has a fixed number of rows, to which a step is padded, and a number of stretches of attention that
is a power of two; it is captured when a step first needs it. Padding rows change no bits of other rows.

The ranks of a divided model must all capture a graph in the same step, because that launches its exchanges.
So theirs depend on the batch alone: the draws, which only rank 0 makes, are launched after them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from galley.ops.batch import Batch
from galley.ops.sampling import SamplingBatch
from galley.ops.triton.attention import power
from galley.ops.triton.sampler import Draws, needs_sorting
from galley.ops.triton.step_batch import Shape, Staging
from galley.ops.triton.steps import Steps
from galley.ops.triton.tiles import SPLIT, Device

if TYPE_CHECKING:
    from galley.ops.triton.ranks import TensorRanks

_ROWS: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
"""Numbers of rows for which graphs are captured; steps with more rows are launched op by op."""

MOST_GRAPHS: Final = 48
"""Maximum number of graphs; the least recently used one is dropped."""


@dataclass(slots=True)
class _Captured:
    staging: Staging
    draws: Draws | None
    logits: torch.Tensor
    graph: "torch.cuda.CUDAGraph"


class DecodeGraphs:
    """The graphs of a program."""

    def __init__(
        self, steps: Steps, groups: int, device: Device, ranks: "TensorRanks | None" = None
    ) -> None:
        self._steps, self._groups, self._device, self._ranks = steps, groups, device, ranks
        self._graphs: dict[tuple[int, int, int, bool, bool], _Captured] = {}

    def takes(self, batch: Batch) -> bool:
        """Return whether a graph can run the step."""
        rows = len(batch.tokens)
        return (
            self._device.graphs
            and self._groups > 0
            and len(batch.starts) - 1 == rows == len(batch.wanted)
            and rows <= _ROWS[-1]
        )

    def run(
        self, batch: Batch, sampling: SamplingBatch | None, drawn: torch.Tensor | None
    ) -> tuple[torch.Tensor, Draws | None]:
        """Launch the step; return its logits and, if the graph draws, its draws.

        Args:
            batch: the step's rows.
            sampling: its draws; None if they are made otherwise.
            drawn: see :meth:`galley.ops.triton.step_batch.Staging.fill`.
        """
        rows = next(n for n in _ROWS if n >= len(batch.tokens))
        longest = int(np.asarray(batch.positions).max())
        stretches, crossed = power(longest // SPLIT + 1), 0
        if batch.cross is not None:
            crossed = power((int(np.asarray(batch.cross.rows).max()) - 1) // SPLIT + 1)
        if sampling is not None and (len(sampling.rows) > rows or needs_sorting(sampling)):
            sampling = None  # sorting takes memory that every graph would keep
        if self._ranks is not None:
            sampling = None
        random = sampling is not None and any(any(record) for record in sampling.records)
        adapted = batch.adapters is not None
        key = (rows, stretches, crossed, random, adapted)
        captured = self._graphs.pop(key, None)
        if captured is None:
            if len(self._graphs) >= MOST_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            shape = Shape.of_decode(rows, stretches, adapted=adapted, crossed=crossed)
            captured = self._capture(batch, shape, drawn, random=random)
        self._graphs[key] = captured
        self._fill(captured, batch, drawn)
        drawing = captured.draws if sampling is not None and sampling.rows else None
        if drawing is not None and sampling is not None:
            drawing.fill(sampling)
        captured.graph.replay()
        return captured.logits, drawing

    def _fill(self, captured: _Captured, batch: Batch, drawn: torch.Tensor | None) -> None:
        rows = np.arange(len(batch.tokens), dtype=np.int32)
        single = np.stack([rows, rows, np.ones_like(rows)], axis=1)
        captured.staging.fill(batch, single, np.zeros((0, 3), dtype=np.int32), drawn)

    def _capture(
        self, batch: Batch, shape: Shape, drawn: torch.Tensor | None, *, random: bool
    ) -> _Captured:
        device = self._device.torch
        staging = Staging(shape, self._groups, self._device, self._steps.blocks, self._ranks)
        vocab = self._steps.parts.program.vocab_size
        draws = None if self._ranks is not None else Draws(shape.rows, vocab, self._device)
        captured = _Captured(staging, draws, torch.empty(0), torch.cuda.CUDAGraph())
        self._fill(captured, batch, drawn)

        def launch() -> None:
            staging.batch.angles.clear()
            captured.logits = self._steps.run(staging.batch)
            if draws is not None:
                draws.launch(captured.logits, greedy=not random)

        # Launch once without capture, because kernels are compiled and loaded at their first launch.
        launch()
        if self._ranks is not None and (launched := self._device.mark()) is not None:
            self._ranks.wait(launched)
        torch.cuda.synchronize(device)
        # NCCL has a thread of its own that queries events meanwhile, which "global" would not allow.
        mode = "global" if self._ranks is None else "thread_local"
        with torch.cuda.graph(captured.graph, capture_error_mode=mode):
            launch()
        return captured
