"""The vectors of stored questions, and which are nearest to another: an exact scan of one scope.

Questions are compared within a scope only (one tenant, one history, one set of parameters), so a scan is of
few vectors: a matrix product of 10,000 vectors of 384 numbers takes two milliseconds.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_IN_THREAD: Final = 1_000_000
"""Numbers in a matrix from which on its product is computed by a thread."""
_SPARE: Final = 4
"""A matrix is halved once this many times the rows in use would fit."""


class Candidate(NamedTuple):
    """A stored question near another, with the cosine of their vectors."""

    similarity: float
    key: bytes
    text: str


@dataclass
class _Scope:
    """The vectors of one scope: row i of ``matrix`` is that of ``keys[i]`` and ``texts[i]``."""

    matrix: NDArray[np.float32]
    keys: list[bytes] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


class Nearest:
    """Vectors in memory, the least recently used of which make room. For use in one event loop."""

    def __init__(self, most: int) -> None:
        """Create an empty index of at most ``most`` vectors."""
        self._most = most
        self._scopes: dict[bytes, _Scope] = {}
        self._rows: OrderedDict[bytes, tuple[bytes, int]] = OrderedDict()
        """Key -> scope and row, the least recently used first."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, scope: bytes, key: bytes, vector: bytes, text: str) -> None:
        """Add a question, or replace it.

        Args:
            scope: with what it may be compared.
            key: its entry's key.
            vector: from :func:`packed`.
            text: the question.
        """
        self.remove(key)
        row = np.frombuffer(vector, dtype=np.float16).astype(np.float32)
        held = self._scopes.get(scope)
        if held is None:
            held = self._scopes[scope] = _Scope(np.empty((1, len(row)), np.float32))
        if held.matrix.shape[1] != len(row):
            return  # of a model that has changed its width under one name
        number = len(held.keys)
        if number == len(held.matrix):
            held.matrix = np.concatenate((held.matrix, np.empty_like(held.matrix)))
        held.matrix[number] = row
        held.keys.append(key)
        held.texts.append(text)
        self._rows[key] = (scope, number)
        if len(self._rows) > self._most:
            self.remove(next(iter(self._rows)))

    def remove(self, key: bytes) -> None:
        """Remove a question if it is there; the last row of its scope takes its place."""
        place = self._rows.pop(key, None)
        if place is None:
            return
        scope, row = place
        held = self._scopes[scope]
        last_key, last_text = held.keys.pop(), held.texts.pop()
        if last_key != key:
            held.matrix[row] = held.matrix[len(held.keys)]
            held.keys[row], held.texts[row] = last_key, last_text
            self._rows[last_key] = (scope, row)
        if not held.keys:
            del self._scopes[scope]
        elif len(held.matrix) >= _SPARE * len(held.keys):
            held.matrix = held.matrix[: len(held.matrix) // 2].copy()

    def use(self, key: bytes) -> None:
        """Note that a question was used."""
        if key in self._rows:
            self._rows.move_to_end(key)

    async def nearest(
        self, scope: bytes, vector: bytes, *, least: float, most: int
    ) -> list[Candidate]:
        """Return the questions of a scope that are at least so similar, the most similar first.

        Args:
            scope: as in :meth:`add`.
            vector: from :func:`packed`.
            least: the lowest cosine.
            most: the number of questions to return.
        """
        held = self._scopes.get(scope)
        row = np.frombuffer(vector, dtype=np.float16).astype(np.float32)
        if held is None or held.matrix.shape[1] != len(row):
            return []
        rows = held.matrix[: len(held.keys)]
        if rows.size < _IN_THREAD:
            similarities = rows @ row
        else:
            similarities = await asyncio.to_thread(np.matmul, rows, row)
        best = np.flatnonzero(similarities >= least)
        if len(best) > most:
            best = best[np.argpartition(similarities[best], -most)[-most:]]
        found = []
        for number in best:
            # Rows may have moved while the thread computed: what counts is the present one.
            if number < len(held.keys):
                similarity = float(held.matrix[number] @ row)
                found.append(Candidate(similarity, held.keys[number], held.texts[number]))
        return sorted((one for one in found if one.similarity >= least), reverse=True)


def packed(vector: bytes) -> bytes:
    """Return a vector of any length as float16 of length 1, two bytes a number.

    Args:
        vector: float32, in the machine's byte order.

    Raises:
        ValueError: it is empty, zero or not finite.
    """
    numbers = np.frombuffer(vector, dtype=np.float32)
    length = float(np.linalg.norm(numbers)) if numbers.size else 0.0
    if not 0 < length < float("inf"):
        raise ValueError("the vector is zero or not finite")
    return (numbers / length).astype(np.float16).tobytes()


def cosine(first: bytes, second: bytes) -> float:
    """Return the cosine of two vectors from :func:`packed`."""
    a, b = (np.frombuffer(v, dtype=np.float16).astype(np.float32) for v in (first, second))
    return float(a @ b)
