"""A teacher's likeliest tokens at every position of the data, on disk, computed once for all steps."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from galley.calibration.forward import TeacherForced, Tokens
from galley.files import complete_or_absent
from galley.formats.weights import Floats
from galley.ops.sampling import Logits

_STATE: Final = "teacher.json"
_KEEP_TOKENS: Final = 1 << 16
"""Number of tokens between two saves of the progress."""


class TeacherCache:
    """Two arrays in a folder: [tokens, k] the likeliest tokens, and their log-probabilities in float16.

    Attributes:
        done: number of texts that are complete.
    """

    def __init__(
        self, folder: Path, texts: Sequence[Tokens], *, vocab_size: int, k: int, temperature: float
    ) -> None:
        """Open the existing arrays, or create new ones.

        Args:
            folder: a folder that belongs to these texts, this teacher, ``k`` and ``temperature``.
            texts: token ids.
            vocab_size: number of the student's tokens; further tokens of the teacher are ignored.
            k: number of tokens kept for each position.
            temperature: the temperature of the probabilities.
        """
        self._folder, self._texts, self._temperature = folder, texts, temperature
        self._k, self._vocab_size = min(k, vocab_size), vocab_size
        self._starts = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
        state = folder / _STATE
        self.done = int(json.loads(state.read_text())["done"]) if state.exists() else 0
        kind = np.uint16 if vocab_size <= 1 << 16 else np.uint32
        self._tokens = self._array("teacher-tokens.npy", kind)
        self._log_probs = self._array("teacher-log-probs.npy", np.float16)

    def _array(self, name: str, kind: Any) -> npt.NDArray[Any]:
        path = self._folder / name
        if self.done:
            return np.lib.format.open_memmap(path, mode="r+")
        shape = (int(self._starts[-1]), self._k)
        return np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=shape)

    def fill(self, teacher: TeacherForced, on_text: Callable[[], None]) -> None:
        """Run the teacher on the texts that are still missing; ``on_text`` is called after each text.

        Raises:
            OSError: the folder cannot be written to.
        """
        kept = self._starts[self.done]
        for text in self._texts[self.done :]:
            start = self._starts[self.done]
            for first, logits in teacher.logits(text):
                rows = slice(start + first, start + first + len(logits))
                self._tokens[rows], self._log_probs[rows] = self._likeliest(logits)
            self.done += 1
            if self._starts[self.done] - kept >= _KEEP_TOKENS or self.done == len(self._texts):
                self._keep()
                kept = self._starts[self.done]
            on_text()

    def _likeliest(self, logits: Logits) -> tuple[npt.NDArray[np.int64], Floats]:
        soft = logits[:, : self._vocab_size] / np.float32(self._temperature)
        soft -= soft.max(axis=1, keepdims=True)
        total = np.log(np.exp(soft).sum(axis=1, keepdims=True))
        tokens = np.argpartition(-soft, self._k - 1, axis=1)[:, : self._k]
        return tokens, np.take_along_axis(soft, tokens, axis=1) - total

    def _keep(self) -> None:
        for array in (self._tokens, self._log_probs):
            assert isinstance(array, np.memmap)
            array.flush()
        with complete_or_absent(self._folder / _STATE) as partial:
            partial.write_text(json.dumps({"done": self.done}))

    def rows(self, text: int) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return one text's tokens [tokens, k] and their log-probabilities at the temperature."""
        rows = slice(int(self._starts[text]), int(self._starts[text + 1]))
        return self._tokens[rows].astype(np.int64), self._log_probs[rows].astype(np.float32)
