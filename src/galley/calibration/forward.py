"""The logits of a model at every position of given texts, without the engine and its scheduling."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import numpy as np

from galley.engine.read_model import Model, read_for_executor
from galley.errors import RequestError, UnsupportedModel
from galley.ops.batch import Batch, Ints
from galley.ops.choice import choose_executor
from galley.ops.executor import Executor, forward
from galley.ops.sampling import Logits
from galley.settings.engine import EngineSettings
from galley.types import blocks_for

Tokens = Sequence[int]

_STEP_ROWS: Final = 256
"""Most rows per step; all of their logits are in memory at the same time."""


class TeacherForced:
    """A loaded model that computes its logits for given texts (teacher forcing).

    Attributes:
        vocab_size: columns of the logits.
        max_positions: the longest text, in tokens.
    """

    def __init__(
        self,
        settings: EngineSettings,
        folder: Path,
        *,
        longest: int,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        """Load the model.

        Args:
            settings: the types of weights and activations, and the device of the model.
            folder: the checkpoint.
            longest: tokens of the longest text.
            kinds: tensor name -> weight type of that matrix instead of ``settings.weight_dtype``.

        Raises:
            ModelError, SettingsError: the checkpoint or the settings cannot be used.
            UnsupportedModel: it is a speech model.
        """
        chosen = choose_executor(settings.executor, settings.device)
        model, _, factory = read_for_executor(settings, folder, chosen)
        check_text_model(model)
        options = model.options
        if kinds is not None:
            # Packed weights on disk have one weight type for all matrices.
            options = dataclasses.replace(options, kinds=kinds, weight_cache=None)
        self._executor: Executor = factory(model.program, model.weights, options)
        self._groups = len(model.program.kv_groups)
        self._blocks = blocks_for(longest)
        self._executor.allocate_kv(self._groups * self._blocks, states=1)
        self.vocab_size = model.program.vocab_size
        self.max_positions = longest

    def logits(self, tokens: Tokens) -> Iterator[tuple[int, Logits]]:
        """Yield (position of the first row, logits [rows, vocab]), a piece at a time, for every token.

        The array is valid until the next piece.

        Raises:
            RequestError: the text is longer than the model was loaded for.
        """
        if len(tokens) > self.max_positions:
            raise RequestError(
                f"the text has {len(tokens)} tokens, the model's context {self.max_positions}"
            )
        ids = np.asarray(tokens, dtype=np.int64)
        tables = tuple(
            np.arange(group * self._blocks, (group + 1) * self._blocks, dtype=np.int64)
            for group in range(self._groups)
        )
        for first in range(0, len(ids), _STEP_ROWS):
            piece = ids[first : first + _STEP_ROWS]
            rows = np.arange(len(piece), dtype=np.int64)
            starts: Ints = np.array([0, len(piece)], dtype=np.int64)
            batch = Batch(piece, first + rows, starts, tables, rows)
            yield first, forward(self._executor, batch)

    def close(self) -> None:
        """Free weights and cache."""
        del self._executor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_text_model(model: Model) -> None:
    """Raise UnsupportedModel if the model is a speech model."""
    if model.speech is not None:
        raise UnsupportedModel(
            "galley eval quality supports language models only; use galley eval speech for speech models"
        )
