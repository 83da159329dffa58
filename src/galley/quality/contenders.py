"""Engines compared on one model: each is served in turn, and gets the same requests.

The loss of an engine is measured through its API, as any client could: after the same tokens, is its
likeliest next token that of float32, and how far are its log-probabilities from those?
"""

import asyncio
import datetime
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from galley import __version__
from galley.bench.serve.client import CallFailed, Client
from galley.bench.serve.results import Point
from galley.bench.serve.server import started
from galley.bench.serve.session import Plan, first_model, run_all
from galley.bench.serve.words import Words
from galley.bench.serve.workload import Workload
from galley.errors import EngineError, GalleyError
from galley.machine import cpu_and_cores, peak_memory
from galley.settings.engine import EngineSettings

if TYPE_CHECKING:
    from galley.speech.evaluate import ManifestEntry

_TEXTS: Final = 8
_PROMPT_TOKENS: Final = 32
_TEXT_TOKENS: Final = 64
_EVERY: Final = 8
"""Number of texts for the loss, tokens of their prompts, generated tokens, and every which is looked at."""

_TOP: Final = 20
"""Log-probabilities that are compared at a position."""

_LEAST: Final = 1e-12
"""Lower bound of a probability."""

REFERENCE_FLAGS: Final = (
    "--dtype", "float32", "--activations", "float32", "--kv-dtype", "float32",
)  # fmt: skip
"""Flags with which Galley's own engine computes everything but the checkpoint's integers in float32."""

OnWork = Callable[[str, int], None]
"""Called with the name of the work and the completed share of the total."""


class Entry(msgspec.Struct, frozen=True):
    """An engine, the model that it serves, and further flags of ``galley serve``.

    Attributes:
        own_model: whether the model is not the one that is compared, but a file of the engine's own.
    """

    engine: str
    model: str
    flags: tuple[str, ...] = ()
    own_model: bool = False


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """The loss of an engine compared with float32.

    Attributes:
        positions: number of positions at which both were asked for the next token.
        top1: share of them at which both chose the same.
        kl: mean KL divergence in nats, over the likeliest tokens of both and all others as one: a lower
            bound of that over the vocabulary. None if the engine reports no log-probabilities.
    """

    positions: int
    top1: float
    kl: float | None


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one engine.

    Attributes:
        error: why there are none; empty if there are.
        start_s: seconds from the command to the model being ready, imports included.
        memory_bytes: most memory that the engine's process has held, mapped weights included; None where
            the system does not report it.
        points: a run for each number of requests at a time.
        loss: None if it was not measured.
        wer: word error rate of a speech model; None for others.
        unsupported: sampling parameters that the engine does not honor.
    """

    engine: str
    model: str
    own_model: bool = False
    error: str = ""
    start_s: float | None = None
    memory_bytes: int | None = None
    points: tuple[Point, ...] = ()
    loss: Loss | None = None
    wer: float | None = None
    unsupported: tuple[str, ...] = ()


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All results of ``galley compare``.

    Attributes:
        reference: the model that was run in float32; empty if the loss was not measured.
        reference_error: why it could not be.
        speech: whether recordings were transcribed.
    """

    galley: str
    started: str
    model: str
    machine: str
    workload: dict[str, str]
    reference: str
    reference_error: str
    contenders: tuple[Contender, ...]
    speech: bool = False


@dataclass(frozen=True, slots=True)
class _Next:
    """The likeliest next token as text, and text -> log-probability of the likeliest ones."""

    text: str
    logprobs: Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class _ReferenceTokens:
    """Token ids of the beginnings of texts, and the reference's next token after each."""

    probes: Sequence[list[int]]
    answers: Sequence[_Next]


def compare(
    entries: Sequence[Entry],
    model: str,
    reference: str,
    plan: Plan,
    workload: Workload,
    facts: dict[str, str],
    on_work: OnWork = lambda name, position: None,
    recordings: "Sequence[ManifestEntry]" = (),
) -> Comparison:
    """Serve each entry in turn, and measure it.

    Args:
        entries: the contenders.
        model: the model that is compared.
        reference: the model that is run in float32; empty to measure no loss.
        plan: numbers of requests at a time.
        workload: the requests.
        facts: the workload in words.
        on_work: called as the work advances, up to ``len(entries)`` times the plan's size.
        recordings: the recordings of the workload, and what is said in them.

    Returns:
        The figures; a contender that fails has its reason instead.
    """
    began = datetime.datetime.now(datetime.UTC)
    reference_tokens, reference_error = None, ""
    if reference:
        on_work("float32", 0)
        try:
            reference_tokens = _with_server(
                Entry("native", reference, REFERENCE_FLAGS), _read_reference, workload
            )
        except GalleyError as error:
            reference_error = str(error)
    size = sum(map(plan.size, plan.loads))
    contenders = []
    for number, entry in enumerate(entries):

        def report(name: str, position: int, entry: Entry = entry, done: int = number) -> None:
            on_work(f"{entry.engine}, {name}", done * size + position)

        try:
            contenders.append(
                _measured(entry, plan, workload, reference_tokens, report, recordings)
            )
        except GalleyError as error:
            contenders.append(_contender(entry, error=str(error)))
        on_work(entry.engine, (number + 1) * size)
    return Comparison(
        galley=__version__,
        started=began.isoformat(timespec="seconds"),
        model=model,
        machine=cpu_and_cores(),
        workload=facts,
        reference=reference if reference_tokens is not None else "",
        reference_error=reference_error,
        contenders=tuple(contenders),
        speech=bool(workload.recordings),
    )


def _contender(entry: Entry, **figures: Any) -> Contender:
    return Contender(engine=entry.engine, model=entry.model, own_model=entry.own_model, **figures)


def _measured(
    entry: Entry,
    plan: Plan,
    workload: Workload,
    reference_tokens: _ReferenceTokens | None,
    report: OnWork,
    recordings: "Sequence[ManifestEntry]",
) -> Contender:
    began = time.monotonic()
    report("start", 0)
    with _served(entry) as (url, pid):
        start_s = time.monotonic() - began
        result = asyncio.run(
            run_all(
                Client(url),
                plan,
                workload,
                model=None,
                target=entry.engine,
                workload_facts={},
                machine="",
                on_progress=report,
            )
        )
        failed = next((point for point in result.points if not point.completed), None)
        if failed is not None:
            [kind, detail], *_ = failed.details.items()
            raise EngineError(f"{failed.name}: every request failed: {kind}: {detail}")
        loss, unsupported = asyncio.run(_loss(url, reference_tokens))
        wer = asyncio.run(_word_errors(url, workload, recordings)) if recordings else None
        return _contender(
            entry,
            start_s=start_s,
            memory_bytes=peak_memory(pid, running="galley.service.worker"),
            points=tuple(result.points),
            loss=loss,
            wer=wer,
            unsupported=unsupported,
        )


async def _word_errors(
    url: str, workload: Workload, recordings: "Sequence[ManifestEntry]"
) -> float:
    from galley.quality.word_errors import word_errors  # needs the extra speech

    with _client(url) as client:
        return await word_errors(client, workload, recordings)


def _with_server(
    entry: Entry, work: "Callable[[Client, str, Workload], Any]", workload: Workload
) -> Any:
    """Return the result of an asynchronous function of a client, the model's name and the workload."""

    async def run(url: str) -> Any:
        with _client(url) as client:
            return await work(client, await first_model(client), workload)

    with _served(entry) as (url, _):
        return asyncio.run(run(url))


def _served(entry: Entry) -> AbstractContextManager[tuple[str, int]]:
    return started(
        *(entry.model, "--engine", entry.engine, *entry.flags),
        quiet=True,
        settings=EngineSettings(),
    )


@contextmanager
def _client(url: str) -> Iterator[Client]:
    client = Client(url)
    try:
        yield client
    except CallFailed as error:
        raise EngineError(f"the server does not answer: {error}") from error
    finally:
        client.close()


async def _read_reference(client: Client, model: str, workload: Workload) -> _ReferenceTokens:
    """Let the reference continue some prompts at temperature 1, and ask for the next token within them."""
    words = await Words.learn(client, model, chat=False)
    probes = []
    for number in range(_TEXTS):
        prompt = await _tokens(client, model, _prompt(workload, words, number))
        body = {"prompt": prompt, "max_tokens": _TEXT_TOKENS, "temperature": 1, "seed": number}
        answer = await _complete(client, {"model": model, "ignore_eos": True, **body})
        text = await _tokens(client, model, answer["text"])
        probes += [prompt + text[:end] for end in range(0, len(text), _EVERY)]
    return _ReferenceTokens(probes, await _next_tokens(client, model, probes, logprobs=True))


def _prompt(workload: Workload, words: Words, number: int) -> str:
    if workload.lines:
        line = workload.lines[number % len(workload.lines)]
        if line.prompt is not None:
            return line.prompt
        if line.messages is not None:
            return "\n".join(str(message.get("content", "")) for message in line.messages)
    return words.text(_PROMPT_TOKENS, random.Random(number), 0.0)


async def _tokens(client: Client, model: str, text: str) -> list[int]:
    status, answer = await client.json("/tokenize", {"model": model, "prompt": text})
    if status != 200:
        raise EngineError(f"the server does not tokenize ({status}): {answer}")
    return [int(token) for token in answer["tokens"]]


async def _complete(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    status, answer = await client.json("/v1/completions", body)
    if status != 200:
        raise EngineError(f"the server does not answer a completion ({status}): {answer}")
    choice: dict[str, Any] = answer["choices"][0]
    return choice


async def _next_tokens(
    client: Client, model: str, probes: Sequence[list[int]], *, logprobs: bool
) -> list[_Next]:
    found = []
    for probe in probes:
        body: dict[str, Any] = {"model": model, "prompt": probe, "max_tokens": 1, "temperature": 0}
        if logprobs:
            body["logprobs"] = _TOP
        choice = await _complete(client, body | {"ignore_eos": True})
        best = choice["logprobs"]["top_logprobs"][0] if logprobs else None
        found.append(_Next(choice["text"], best))
    return found


async def _loss(
    url: str, reference_tokens: _ReferenceTokens | None
) -> tuple[Loss | None, tuple[str, ...]]:
    """Return the loss of the engine behind a server, and the parameters that it does not honor."""
    with _client(url) as client:
        _, models = await client.json("/v1/models")
        card = models["data"][0]
        unsupported = tuple(card["unsupported_parameters"])
        if reference_tokens is None:
            return None, unsupported
        reports = "logprobs" not in unsupported
        answers = await _next_tokens(client, card["id"], reference_tokens.probes, logprobs=reports)
    pairs = list(zip(reference_tokens.answers, answers, strict=True))
    same = sum(one.text == other.text for one, other in pairs)
    kl = None
    if reports:
        divergences = [divergence(one.logprobs or {}, other.logprobs or {}) for one, other in pairs]
        kl = math.fsum(divergences) / len(divergences)
    return Loss(positions=len(pairs), top1=same / len(pairs), kl=kl), unsupported


def divergence(expected: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return the KL divergence in nats over the tokens in both, and all others as one.

    Args:
        expected, other: token -> log-probability of the likeliest tokens of each.
    """
    shared = [token for token in expected if token in other]
    total = math.fsum(
        math.exp(expected[token]) * (expected[token] - other[token]) for token in shared
    )
    rest, other_rest = (
        max(_LEAST, 1 - math.fsum(math.exp(side[token]) for token in shared))
        for side in (expected, other)
    )
    return max(0.0, total + rest * math.log(rest / other_rest))
