"""Two servers' predictions of the same recorded texts, compared token by token.

Both read the recorded prompts and answers and return the alternatives of each token of an answer (OpenAI's
``echo`` with ``logprobs``), so the tokens are fixed and differences do not accumulate.
"""

import asyncio
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from galley.bench.serve.client import Client
from galley.errors import EngineError

ALTERNATIVES: Final = 20
"""Alternatives of each token: the most that Galley and vLLM return by default."""

_AT_ONCE: Final = 4
_SMALLEST: Final = 1e-12


class Fidelity(msgspec.Struct, frozen=True, kw_only=True):
    """How far the second server's predictions are from the first's.

    Attributes:
        texts, tokens: how many answers, and tokens of them, were compared.
        top1: share of the tokens at which both rank the same token first.
        kl: mean of KL(first || second) in nats, with all tokens that not both list taken as one: a lower
            bound of that over the vocabulary.
        perplexities: of the answers, on the first server and on the second.
    """

    texts: int
    tokens: int
    top1: float
    kl: float
    perplexities: tuple[float, float]


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]


class _Choice(msgspec.Struct):
    logprobs: _Logprobs | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


async def compare_texts(
    clients: tuple[Client, Client],
    models: tuple[str, str],
    texts: Sequence[tuple[list[int], list[int]]],
    on_end: Callable[[], None] = lambda: None,
) -> Fidelity:
    """Compare two servers on recorded texts.

    Args:
        clients: of both servers.
        models: served names.
        texts: token ids of each prompt and of its answer, none of them empty.
        on_end: called when a text has been compared.

    Raises:
        EngineError: a server does not return log-probabilities of a prompt.
        CallFailed: a server cannot be reached.
    """
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(prompt: list[int], answer: list[int]) -> list[tuple[_Token, _Token]]:
        async with gate:
            both = [
                await _read(client, model, prompt, answer)
                for client, model in zip(clients, models, strict=True)
            ]
        on_end()
        return list(zip(*both, strict=True))

    found = await asyncio.gather(*(one(prompt, answer) for prompt, answer in texts))
    tokens = [pair for pairs in found for pair in pairs]
    count = len(tokens)
    first, second = (math.exp(-sum(pair[side][0] for pair in tokens) / count) for side in (0, 1))
    return Fidelity(
        texts=len(texts),
        tokens=count,
        top1=sum(_first(a[1]) == _first(b[1]) for a, b in tokens) / count,
        kl=sum(divergence(a[1], b[1]) for a, b in tokens) / count,
        perplexities=(first, second),
    )


_Token = tuple[float, Mapping[str, float]]
"""Log-probability of a token, and those of its alternatives by text."""


async def _read(client: Client, model: str, prompt: list[int], answer: list[int]) -> list[_Token]:
    body: dict[str, Any] = {
        "model": model,
        "prompt": [*prompt, *answer],
        "max_tokens": 1,  # 0 is not allowed by every server
        "echo": True,
        "logprobs": ALTERNATIVES,
        "temperature": 0,
    }
    status, answered = await client.json("/v1/completions", body)
    if status != 200:
        raise EngineError(
            f"the server does not return the texts' log-probabilities: {status}: {answered}"
        )
    try:
        logprobs = msgspec.convert(answered, _Completion).choices[0].logprobs
    except (msgspec.ValidationError, IndexError) as error:
        raise EngineError(f"the server's log-probabilities cannot be read: {error}") from error
    places = range(len(prompt), len(prompt) + len(answer))
    if logprobs is None:
        raise EngineError("the server does not return log-probabilities of a prompt (echo)")
    pairs = zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=False)
    own = itertools.islice(pairs, places.start, places.stop)
    found: list[_Token] = [(one, top) for one, top in own if one is not None and top]
    if len(found) < len(places):
        raise EngineError(
            f"the server returns log-probabilities of {len(found)} tokens of an answer of {len(places)}"
        )
    return found


def _first(alternatives: Mapping[str, float]) -> str | None:
    return max(alternatives, key=lambda token: alternatives[token], default=None)


def divergence(base: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return the KL divergence of two distributions over the tokens that both list, and the rest as one.

    Merging outcomes never increases a divergence (data processing inequality), so this is a lower bound.

    Args:
        base, other: token -> natural logarithm of its probability.
    """
    common = base.keys() & other.keys()
    p = [math.exp(base[token]) for token in common]
    q = [math.exp(other[token]) for token in common]
    p.append(max(0.0, 1 - sum(p)))
    q.append(max(0.0, 1 - sum(q)))
    terms = (a * math.log(a / max(b, _SMALLEST)) for a, b in zip(p, q, strict=True) if a > 0)
    return max(0.0, sum(terms))
