"""A speech model's encoder and aligner, on the caches and the matrices of its decoder."""

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from galley.graph.program import Program
from galley.ops.batch import Batch, EncoderBatch, EncoderRows, Table
from galley.ops.executor import Attention
from galley.ops.triton.attention import rows_of_tiles
from galley.ops.triton.parts import Parts, Run
from galley.ops.triton.sizes import KEPT_WINDOWS
from galley.ops.triton.step_batch import Numbers, Staging, shape_of, tiles_of
from galley.ops.triton.steps import Steps
from galley.ops.triton.tiles import Device


class Speech:
    """The launches of an encoder and, if the model has one, of an aligner."""

    def __init__(self, program: Program, decoder: Parts) -> None:
        """Build the launches of the encoder and aligner of ``program``.

        Raises:
            UnsupportedModel: an op has no kernel.
        """
        assert program.encoder is not None
        self._device, self._most_rows = decoder.device, program.encoder.max_rows
        self._encoder = Steps(decoder.sharing(program.encoder))
        self._windows: dict[int, _Window] = {}
        self._aligner = None
        if program.aligner is not None:
            self._aligner = Steps(decoder.sharing(program.aligner))
            self._heads = program.aligner.aligned_heads

    def encode(self, inputs: EncoderBatch, blocks: int) -> EncoderRows | None:
        """Encode the inputs into their blocks, of which there are ``blocks``; return the rows it gives."""
        given = []
        for i, (begin, end) in enumerate(itertools.pairwise(inputs.starts)):
            # What the window before copies to the device must not be overwritten before it is there.
            self._device.synchronize()
            window = self._window(int(end - begin), blocks)
            rows = window.encode(inputs.features[begin:end], inputs.tables[i])
            if rows is not None:
                given.append(rows.to("cpu", torch.float32).numpy())
        return np.concatenate(given) if given else None

    def _window(self, frames: int, blocks: int) -> "_Window":
        """Return the launches of a window of this length; those of the last lengths are kept."""
        window = self._windows.pop(frames, None)
        if window is None:
            if len(self._windows) >= KEPT_WINDOWS:
                del self._windows[next(iter(self._windows))]
            window = _Window(self._encoder, frames, self._device, blocks)
        self._windows[frames] = window
        return window

    def align(self, batch: Batch, blocks: int) -> Attention:
        """Return the alignment heads' attention; see :func:`galley.ops.executor.align`."""
        assert self._aligner is not None, "the model has no alignment heads"
        staging, single, tiles = _staging(self._aligner, batch, self._device, blocks)
        staged = staging.fill(batch, single, tiles)
        shape = (len(batch.tokens), self._heads, self._most_rows)
        weights = torch.zeros(shape, device=self._device.torch)
        self._aligner.launch(Run(staged, staged.slots, attention=weights))
        found: Attention = weights.cpu().numpy()
        return found


class _Window:
    """The launches of an encoder on a window of some length: from the second one on, a CUDA graph."""

    def __init__(self, steps: Steps, frames: int, device: Device, blocks: int) -> None:
        program = steps.parts.program
        self._steps, self._device, self._uses = steps, device, 0
        self._rows = list(_levels(program, frames))
        self._levels = [_staging(steps, _batch(rows), device, blocks) for rows in self._rows]
        self._features = torch.empty(
            (frames, program.mels), dtype=steps.parts.dtype, device=device.torch
        )
        self._graph: torch.cuda.CUDAGraph | None = None
        self._given: torch.Tensor | None = None

    def encode(self, features: npt.NDArray[np.float32], table: Table) -> torch.Tensor | None:
        """Encode [frames, mels] into the blocks of ``table``; return the rows that the encoder gives."""
        for rows, (staging, single, tiles) in zip(self._rows, self._levels, strict=True):
            staging.fill(_batch(rows, table), single, tiles)
        self._features.copy_(torch.from_numpy(np.ascontiguousarray(features)))
        self._uses += 1
        if self._graph is not None:
            self._graph.replay()
        elif self._uses > 1 and self._device.graphs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._launch()
            self._graph = graph
            graph.replay()
        else:
            self._launch()
        return self._given

    def _launch(self) -> None:
        first, *later = [staging.batch for staging, _, _ in self._levels]
        run = Run(first, None, later=later, features=self._features)
        self._steps.launch(run)
        self._given = run.given


def _levels(program: Program, frames: int) -> Iterator[int]:
    """Yield the number of rows of a window: its frames, then what each ``im2col`` leaves of them."""
    yield frames
    for op in program.ops:
        if op.name == "im2col":
            frames = -(-frames // op.attrs["stride"])
            yield frames


def _batch(rows: int, table: "Table | None" = None) -> Batch:
    """Return the rows of a window, whose output goes to the blocks of ``table``."""
    none = np.zeros(0, np.int64)
    return Batch(
        tokens=np.zeros(rows, np.int64),
        positions=np.arange(rows),
        starts=np.array([0, rows]),
        tables=(none if table is None else table,),
        wanted=none,
    )


def _staging(
    steps: Steps, batch: Batch, device: Device, blocks: int
) -> tuple[Staging, Numbers, Numbers]:
    """Return memory for a batch, and its tiles."""
    program = steps.parts.program
    single, tiles = tiles_of(batch, rows_of_tiles(program, device))
    staging = Staging(shape_of(batch, single, tiles), len(program.kv_groups), device, blocks)
    return staging, single, tiles
