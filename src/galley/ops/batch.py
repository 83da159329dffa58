"""A step's work as an executor takes it: a ragged batch of token rows and encoder inputs."""

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
EncoderRows = npt.NDArray[np.float32]
Integers: TypeAlias = "array[int] | Ints"
"""64-bit integers. In a decoding step, a numpy call would cost more than the work itself."""
Table: TypeAlias = Integers
"""KV blocks in order, possibly more than needed. The engine may change a table after the step."""


@dataclass(frozen=True, slots=True)
class CrossContext:
    """The encoder outputs that a step's sequences attend to, one per sequence, encoded earlier.

    Attributes:
        tables: for each sequence, the KV blocks of its encoder output.
        rows: [sequences] the number of rows of each encoder output.
    """

    tables: tuple[Table, ...]
    rows: Ints


@dataclass(frozen=True, slots=True)
class EncoderBatch:
    """Encoder inputs, ragged: input i owns frames ``starts[i]`` to ``starts[i + 1]``.

    Attributes:
        features: [frames, mels] log-mel.
        starts: [inputs + 1].
        tables: for each input, the KV blocks for all rows that the encoder produces from it.
    """

    features: npt.NDArray[np.float32]
    starts: Ints
    tables: tuple[Table, ...]

    def __post_init__(self) -> None:
        assert len(self.features) == self.starts[-1]
        assert len(self.tables) == len(self.starts) - 1


class Batch(msgspec.Struct, frozen=True):
    """One step's work. Token rows are ragged: sequence s owns rows ``starts[s]`` to ``starts[s + 1]``.

    Attributes:
        tokens: [rows] token ids.
        positions: [rows] absolute positions; consecutive within a sequence.
        starts: [sequences + 1].
        tables: block tables by KV group, then by sequence: entry ``g * sequences + s`` has the KV blocks of
            positions 0 up to the last row of sequence s in the layers of group g. Entries for blocks that
            have left a sliding window hold the number of some other block.
        wanted: [wanted] rows whose logits are needed, ascending.
        cross: what the decoder of a speech model attends to; None for a text model.
        adapters: [sequences] the slot of each sequence's adapter, -1 for none; None if no sequence has one.
        copies: (from, to) pairs of KV blocks to copy in every layer, before anything else.
        encode: encoder inputs of a speech model, encoded before the tokens are computed.
        align: sequences for which the attention of a speech model's alignment heads is computed instead of
            logits. Their keys and values are written, but not in all layers.
        types: [rows] token types; None means all 0.
        states: for a recurrent model, one table per sequence: the slot that holds its state (-1: it starts
            from zeros), then alternately a number of processed rows and the slot in which to store the
            state after them; the last pair is for all rows. A sequence may continue from a state that an
            earlier sequence of the batch stores. None means that sequence s uses slot s.
    """

    tokens: Integers
    positions: Integers
    starts: Integers
    tables: tuple[Table, ...]
    wanted: Integers
    cross: CrossContext | None = None
    adapters: "array[int] | Ints | None" = None
    copies: Sequence[tuple[int, int]] = ()
    encode: EncoderBatch | None = None
    align: "Batch | None" = None
    types: "Integers | None" = None
    states: tuple[Table, ...] | None = None

    def __post_init__(self) -> None:
        sequences = len(self.starts) - 1
        assert len(self.tokens) == len(self.positions) == self.starts[-1]
        assert self.types is None or len(self.types) == len(self.tokens)
        assert not sequences or len(self.tables) % sequences == 0
        assert self.cross is None or len(self.cross.tables) == sequences
        assert self.adapters is None or len(self.adapters) == sequences
        assert self.states is None or len(self.states) == sequences

    def state_slots(self) -> tuple[Table, ...]:
        """Return ``states``, or the tables that None stands for."""
        if self.states is not None:
            return self.states
        return tuple(
            array("q", [s if self.positions[begin] else -1, end - begin, s])
            for s, (begin, end) in enumerate(itertools.pairwise(self.starts))
        )


_NONE: Final = np.zeros(0, dtype=np.int64)
NO_TOKENS: Final = Batch(_NONE, _NONE, np.zeros(1, dtype=np.int64), (), _NONE)
"""A batch without token rows."""


def join_tables(tables: Sequence[Table]) -> "tuple[array[int], array[int]]":
    """Return all tables concatenated, and [tables + 1] where each begins."""
    blocks, starts = array("q"), array("q", [0])
    for table in tables:
        blocks.extend(table)
        starts.append(len(blocks))
    return blocks, starts
