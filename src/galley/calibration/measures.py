"""The divergence of one model's predictions from another's, position by position."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from galley.ops.sampling import Logits

Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Loss:
    """The loss of a model compared with its base, over all positions of the texts.

    Attributes:
        tokens: positions whose next token is known.
        base_perplexity, perplexity: e to the mean negative log-probability of that token.
        kl: mean of the Kullback-Leibler divergence KL(base || model) of the next token, in nats, over
            the whole vocabulary.
        kl_p99: 99 % of the positions have at most this divergence.
        kl_max: divergence at the worst position.
        top1: share of positions at which both models rank the same token first.
    """

    tokens: int
    base_perplexity: float
    perplexity: float
    kl: float
    kl_p99: float
    kl_max: float
    top1: float


@dataclass(frozen=True)
class TokenLoss:
    """Positions at which the base ranks one token first.

    Attributes:
        token: its id.
        positions: how many they are.
        kl: mean divergence there, in nats.
        top1: share of them at which the model ranks it first, too.
    """

    token: int
    positions: int
    kl: float
    top1: float


_VALUES: Final = 1 << 22
"""Logits compared at a time; each has several float64 copies."""


class Divergence:
    """Collects the predictions of two models at the same positions."""

    def __init__(self) -> None:
        self._kl: list[Doubles] = []
        self._base_nats: list[Doubles] = []
        self._nats: list[Doubles] = []
        self._expected: list[Ids] = []
        self._agrees: list[npt.NDArray[np.bool_]] = []

    def add(self, base: Logits, model: Logits, following: Ids) -> None:
        """Add both models' logits [rows, vocab], and the token that follows each row; -1: none does."""
        rows = max(1, _VALUES // base.shape[1])
        for first in range(0, len(base), rows):
            at = slice(first, first + rows)
            self._add(base[at], model[at], following[at])

    def _add(self, base: Logits, model: Logits, following: Ids) -> None:
        p, q = log_softmax(base), log_softmax(model)
        # A masked token has a logit of -inf; where both models have it, there is no difference.
        terms = np.exp(p) * np.subtract(p, q, out=np.zeros_like(p), where=~np.isneginf(p))
        expected = base.argmax(axis=1)
        self._kl.append(np.maximum(terms.sum(axis=1), 0.0))
        self._expected.append(expected)
        self._agrees.append(expected == model.argmax(axis=1))
        rows = np.flatnonzero(following >= 0)
        self._base_nats.append(-p[rows, following[rows]])
        self._nats.append(-q[rows, following[rows]])

    def loss(self) -> Loss:
        """Return the loss over everything that was added, which must hold a token that follows another."""
        kl = np.concatenate(self._kl)
        return Loss(
            tokens=sum(map(len, self._nats)),
            base_perplexity=float(np.exp(np.concatenate(self._base_nats).mean())),
            perplexity=float(np.exp(np.concatenate(self._nats).mean())),
            kl=float(kl.mean()),
            kl_p99=float(np.quantile(kl, 0.99)),
            kl_max=float(kl.max()),
            top1=float(np.concatenate(self._agrees).mean()),
        )

    def quantiles(self) -> tuple[float, ...]:
        """Return the divergence in nats that 0, 1, ... 100 % of the positions have at most."""
        found = np.quantile(np.concatenate(self._kl), np.linspace(0, 1, 101))
        return tuple(map(float, found))

    def by_token(self) -> list[TokenLoss]:
        """Return the loss by the token that the base ranks first, in descending order of total loss."""
        kl, expected = np.concatenate(self._kl), np.concatenate(self._expected)
        agrees = np.concatenate(self._agrees)
        found = []
        for token in np.unique(expected):
            at = expected == token
            mean, agreed = float(kl[at].mean()), float(agrees[at].mean())
            found.append(TokenLoss(int(token), int(at.sum()), mean, agreed))
        return sorted(found, key=lambda one: -one.kl * one.positions)


def following(windows: Sequence[Sequence[int]]) -> Ids:
    """Return the token that follows each token of all texts, concatenated; -1 at each text's end."""
    return np.concatenate([np.array([*window[1:], -1], dtype=np.int64) for window in windows])


def log_softmax(logits: Logits) -> Doubles:
    """Return the log-probabilities of each row."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def agreement(expected: Ids, said: Ids) -> int:
    """Count the tokens of the greedy text ``said`` before the first that differs from ``expected``."""
    differs = np.flatnonzero(expected[: len(said)] != said)
    return int(differs[0]) if len(differs) else len(said)
