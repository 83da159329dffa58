"""What an embedding peer does, and the requests that its process accepts.

Texts are token ids; peers with their own tokenizer get the words for those ids. Standard library only.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

Texts: TypeAlias = Sequence[list[int]]
Vectors: TypeAlias = Sequence[Sequence[float]]
"""Averages of the last layer's rows, of length 1."""

SPECIAL: Final = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
"""As in BERT's own vocabulary."""
BATCHES: Final = (1, 8, 32)
"""Of padded texts; a contender that pads tries all and keeps to the fastest."""


class Embedder(Protocol):
    """A loaded model."""

    def embed(self, texts: Texts) -> Vectors:
        """Return the vectors in the order of the texts."""
        ...


def word(token: int) -> str:
    """Return the word that the checkpoints' tokenizers map to this id."""
    return f"w{token}"


def text(ids: Sequence[int]) -> str:
    """Return a text that is tokenized to these ids."""
    return " ".join(map(word, ids))


def answer(model: Embedder, request: Mapping[str, Any]) -> list[float]:
    """Return the seconds for ``{"texts": ids of each}``, or the vector for ``{"vector": ids of one}``."""
    if "vector" in request:
        [vector] = model.embed([request["vector"]])
        return [float(x) for x in vector]
    began = time.perf_counter()
    model.embed(request["texts"])
    return [time.perf_counter() - began]


class Padded:
    """Embeds texts in batches of similar length, padded to the longest; the batch size is the fastest one.

    Args:
        rows: ids and mask, int64 [batch, length], of each batch -> each batch's last layer, float32
            [batch, length, width].
        sizes: batch sizes to try with the first texts, if there is more than one.
    """

    def __init__(
        self,
        rows: Callable[[Sequence[tuple[Any, Any]]], Sequence[Any]],
        sizes: Sequence[int] = BATCHES,
    ) -> None:
        self._rows = rows
        self._sizes = list(sizes)

    def embed(self, texts: Texts) -> Vectors:
        """See :class:`Embedder`."""
        if len(self._sizes) > 1 and len(texts) >= max(self._sizes):
            taken = {}
            for size in self._sizes:
                self._embed(texts[:size], size)
                began = time.perf_counter()
                self._embed(texts, size)
                taken[size] = time.perf_counter() - began
            self._sizes = [min(taken, key=taken.__getitem__)]
        return self._embed(texts, self._sizes[-1])

    def _embed(self, texts: Texts, size: int) -> Vectors:
        import numpy as np

        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        places = [order[first : first + size] for first in range(0, len(order), size)]
        batches = []
        for chosen in places:
            ids = np.zeros((len(chosen), len(texts[chosen[-1]])), np.int64)
            mask = np.zeros_like(ids)
            for row, place in enumerate(chosen):
                ids[row, : len(texts[place])] = texts[place]
                mask[row, : len(texts[place])] = 1
            batches.append((ids, mask))
        found: list[Any] = [None] * len(texts)
        for chosen, (_, mask), rows in zip(places, batches, self._rows(batches), strict=True):
            mean = (rows * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            mean /= np.linalg.norm(mean, axis=1, keepdims=True)
            for row, place in enumerate(chosen):
                found[place] = mean[row]
        return found
