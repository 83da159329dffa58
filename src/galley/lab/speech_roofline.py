"""A transcription's time by roofline: the encoder's arithmetic, and the decoder's steps."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from galley.bench.machine import read_rate
from galley.bench.report import PEAK_KIND
from galley.engine.read_model import read_model
from galley.formats.source import resolve_model
from galley.graph.program import Program
from galley.lab.bench import Lab
from galley.plan.steps import Shares
from galley.settings.engine import EngineSettings

if TYPE_CHECKING:
    from galley.speech.transcribe import Transcriber

_SHARES: Final = Shares()
_READ_BYTES: Final = (1 << 20, 128 << 20)


class Work(NamedTuple):
    """What an engine computed.

    Attributes:
        encoded: rows of encoders; 50 a second for Whisper.
        steps: of the decoder.
        tokens: rows of all of these steps.
    """

    encoded: int
    steps: float
    tokens: int


def work_of(one: "Transcriber", transcribe: Callable[[], object]) -> Work:
    """Return what a call had a transcriber compute."""
    before = one.stats
    transcribe()
    after = one.stats
    tokens = after.prefill_tokens + after.decode_tokens
    return Work(
        encoded=after.encoder_rows - before.encoder_rows,
        steps=after.steps - before.steps,
        tokens=tokens - before.prefill_tokens - before.decode_tokens,
    )


class SpeechRoofline:
    """Predicts a loaded speech model on this machine, with the shares of its peaks that a plan assumes."""

    def __init__(self, lab: Lab, one: "Transcriber") -> None:
        """Measure how fast the decoder's weights are read now."""
        settings = EngineSettings(model=lab.speech_model, threads=lab.settings.threads)
        program = read_model(settings, resolve_model(lab.speech_model)).program
        assert program.encoder is not None  # a transcriber has loaded it
        self._encoder = program.encoder
        info = one.info.require_program()
        self._costs = info.costs
        self._peak = lab.peaks.operations[PEAK_KIND[info.activations]].median
        least, most = _READ_BYTES
        self._read = read_rate(
            lab.settings.threads, min(max(self._costs.weight_bytes, least), most)
        )

    def seconds(self, work: Work) -> float:
        """Return the time of a transcription; all steps have equally many rows."""
        rows = max(1, round(work.tokens / max(1, work.steps)))
        return self._encoding(work.encoded) + work.steps * self._step(rows)

    def _encoding(self, rows: int) -> float:
        """Return the seconds of the encoder, whose inputs are as long as they may be."""
        frames = rows * frames_a_row(self._encoder)
        whole, rest = divmod(frames, self._encoder.max_positions)
        operations = whole * encoder_operations(self._encoder, self._encoder.max_positions)
        operations += encoder_operations(self._encoder, rest) if rest else 0
        return operations / (self._peak * _SHARES.arithmetic_of(max(1, rows)))

    def _step(self, rows: int) -> float:
        """Return the seconds of a decoder step with this many rows, all of whose logits are wanted."""
        costs = self._costs
        operations = rows * (costs.row_operations + costs.logit_operations)
        return _SHARES.step_seconds + max(
            costs.weights_read(rows) / (self._read * _SHARES.bandwidth),
            operations / (self._peak * _SHARES.arithmetic_of(rows)),
        )


def frames_a_row(encoder: Program) -> int:
    """Return how many frames of features become a row."""
    return math.prod(op.attrs["stride"] for op in encoder.ops if op.name == "im2col")


def encoder_operations(encoder: Program, frames: int) -> int:
    """Return the operations for an input of this many frames; a multiply-add counts as two."""
    rows: dict[int, int] = {}
    total = 0
    for op in encoder.ops:
        if op.inputs:
            count = rows[op.inputs[0]]
        else:
            count = frames if op.name == "features" else -(-frames // frames_a_row(encoder))
        if op.name == "im2col":
            count = -(-count // op.attrs["stride"])
        total += 2 * count * encoder.products(op)
        if op.name == "encoder_attention":
            widths = op.attrs["key_dim"] + op.attrs["value_dim"]
            total += 2 * op.attrs["heads"] * widths * count * count
        rows |= dict.fromkeys(op.outputs, count)
    return total
