"""A speech model's encoder and aligner, on the caches and the matrices of its decoder."""

from collections.abc import Iterator

import numpy as np
import torch

from galley.graph.program import Program
from galley.ops.batch import Batch, EncoderBatch, EncoderRows
from galley.ops.executor import Attention
from galley.ops.triton.attention import rows_of_tiles
from galley.ops.triton.parts import Parts, Run
from galley.ops.triton.step_batch import Staging, StepBatch, shape_of, tiles_of
from galley.ops.triton.steps import Steps


class Speech:
    """The launches of an encoder and, if the model has one, of an aligner."""

    def __init__(self, program: Program, decoder: Parts) -> None:
        """Build the launches of the encoder and aligner of ``program``.

        Raises:
            UnsupportedModel: an op has no kernel.
        """
        assert program.encoder is not None
        self._device, self._most_rows = decoder.device, program.encoder.max_rows
        self._encoder = Steps(decoder.beside(program.encoder))
        self._aligner = None
        if program.aligner is not None:
            self._aligner = Steps(decoder.beside(program.aligner))
            self._heads = program.aligner.aligned_heads

    def encode(self, inputs: EncoderBatch, blocks: int) -> EncoderRows | None:
        """Encode the inputs into their blocks, of which there are ``blocks``; return the rows it gives."""
        features = torch.from_numpy(np.ascontiguousarray(inputs.features))
        batches = [self._staged(self._encoder, batch, blocks) for batch in self._levels(inputs)]
        run = Run(batches[0], None, later=batches[1:])
        run.features = features.to(self._device.torch, self._encoder.parts.dtype)
        self._encoder.launch(run)
        return None if run.given is None else run.given.to("cpu", torch.float32).numpy()

    def align(self, batch: Batch, blocks: int) -> Attention:
        """Return the alignment heads' attention; see :func:`galley.ops.executor.align`."""
        assert self._aligner is not None, "the model has no alignment heads"
        staged = self._staged(self._aligner, batch, blocks)
        shape = (len(batch.tokens), self._heads, self._most_rows)
        weights = torch.zeros(shape, device=self._device.torch)
        self._aligner.launch(Run(staged, staged.slots, attention=weights))
        found: Attention = weights.cpu().numpy()
        return found

    def _levels(self, inputs: EncoderBatch) -> Iterator[Batch]:
        """Yield the rows of the inputs: frames, then what each ``im2col`` leaves of them."""
        lengths = np.diff(inputs.starts)
        yield _rows(lengths, inputs)
        for op in self._encoder.parts.program.ops:
            if op.name == "im2col":
                lengths = -(-lengths // op.attrs["stride"])
                yield _rows(lengths, inputs)

    def _staged(self, steps: Steps, batch: Batch, blocks: int) -> StepBatch:
        program = steps.parts.program
        single, tiles = tiles_of(batch, rows_of_tiles(program, self._device))
        groups = len(program.kv_groups)
        staging = Staging(shape_of(batch, single, tiles), groups, self._device, blocks)
        return staging.fill(batch, single, tiles)


def _rows(lengths: "np.ndarray[tuple[int], np.dtype[np.int64]]", inputs: EncoderBatch) -> Batch:
    """Return rows of inputs as a batch whose positions count from each input's first row."""
    starts = np.concatenate([[0], lengths.cumsum()])
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    return Batch(
        tokens=np.zeros(starts[-1], np.int64),
        positions=positions,
        starts=starts,
        tables=inputs.tables,
        wanted=np.zeros(0, np.int64),
    )
