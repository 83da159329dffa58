"""Measure speculative decoding: speed at a controlled acceptance rate, and the acceptance of real tasks.

    python -m benchmarks.speculation [MODEL] [--weight-dtype int4] [--sequences 1,2,4,8,16,32]
        [--acceptance 0,0.5,0.7,0.9,1] [--tasks [--draft-model NAME]] [--peer HOME [--quick]]
        [--results benchmarks/results/FILE]

By default the acceptance rate is controlled: draft tokens are those that the same requests got without
speculation, each right with the given probability. The engine, which knows neither, decides how many to
verify. Tokens per second are those of a full batch: from the step in which the last sequence gets its first
token to that in which the first sequence ends. Sequences of a Whisper model (``python -m
benchmarks.peers.whisper_checkpoint`` writes one) have a 30-second window each. The prediction is computed
for the best number of draft tokens per sequence: the mean number of tokens gained by that many drafts,
divided by the time of a step with that many rows relative to one without drafts.

``--peer`` compares Galley's prompt lookup with those of llama.cpp and OpenVINO GenAI, one sequence at a
time, on a model of 1.24 billion parameters at 4 bits whose prompts predict a chosen share of its texts; see
:mod:`benchmarks.lookup_peers`. The folder HOME holds the peers, as for ``python -m benchmarks.peers``.

``--tasks`` measures the bundled model's tasks: acceptance and speed of each proposer. Texts must equal
those without speculation. ``--draft-model`` adds that model, alone and combined with the other proposers.
Run it on an idle machine.
"""

import argparse
import contextlib
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table
from scripts.benchmarks_page import Figure

from benchmarks import lookup_peers
from benchmarks.results_file import machine_file, put
from galley import LLM, SamplingParams
from galley.demo import heldout
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.engine.speculation import EngineSpeculation
from galley.engine.warm_up import measure_rows
from galley.formats.source import resolve_model
from galley.machine import available_cores
from galley.service.requests import expand
from galley.service.speech_requests import transcribe_requests
from galley.settings.engine import EngineSettings, Speculation
from galley.speculation.proposer import Follower, Forced, Proposal
from galley.speculation.row_costs import RowCosts
from galley.speculation.speculator import MOST_DRAFT_TOKENS
from galley.types import Decoded, EngineRequest
from galley.types.audio import EncoderInput, SpeechInfo
from recipes.assistant import glossary

COMMAND: Final = "python -m benchmarks.speculation"
PROMPT_TOKENS: Final = 32
TURN: Final = 6
"""Steps with speculation, followed by as many without."""
WAYS: Final[dict[str, Speculation]] = {
    "off": "off",
    "prompt": "prompt",
    "recent": "recent",
    "auto": "auto",
}
DRAFT_WAYS: Final[dict[str, Speculation]] = {"draft": "draft", "auto and draft": "auto"}
"""Proposers with a draft model."""
MOST_ROWS: Final = 64
PARAMS: Final = SamplingParams(temperature=0, max_tokens=200)


class Oracle:
    """Proposes what the requests got without speculation, each token right with the same probability."""

    name = "oracle"

    def __init__(self, texts: dict[tuple[int, ...], list[int]], rate: float) -> None:
        """Create a proposer; ``texts`` maps each prompt to prompt and output."""
        self._texts = texts
        self._rate = rate
        self._random = random.Random(1)

    def follow(self, salt: bytes, forced: Forced | None) -> Follower:
        """Return the same follower for all requests."""
        return self

    def remember(self, salt: bytes, tokens: Sequence[int], prompt: int) -> None:
        """Do nothing: all texts are known."""

    def propose(self, tokens: Sequence[int], most: int) -> Proposal:
        """See :meth:`galley.speculation.proposer.Follower.propose`."""
        text = self._texts[tuple(tokens[:PROMPT_TOKENS])]
        known = len(tokens)
        draft_tokens = [
            token if self._random.random() < self._rate else token ^ 1
            for token in text[known : known + most]
        ]
        return Proposal(draft_tokens, 1)


def requests_of(engine: Engine, sequences: int, tokens: int) -> list[EngineRequest]:
    """Return greedy continuations of random prompts; a speech model gets a window of noise for each."""
    rng = random.Random(0)
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    speech = engine.info.speech
    first = [] if speech is None else [speech.start_token]
    words = engine.info.require_text().vocab_size - 2 if speech is None else speech.start_token - 1
    requests = []
    for number in range(sequences):
        prompt = [*first, *(rng.randrange(5, words) for _ in range(PROMPT_TOKENS - len(first)))]
        name = f"r{number}"
        if speech is None:
            requests += expand(prompt, params, engine.info, request_id=name)
            continue
        requests += transcribe_requests(
            prompt, params, engine.info, request_id=name, encoder_input=_noise(speech, number)
        )
    return requests


def _encoder_rows(model: str) -> int:
    """Return the KV tokens of the longest window's encoder output; 0 for a text model."""
    config = resolve_model(model) / "config.json"
    return (
        int(json.loads(config.read_text()).get("max_source_positions", 0)) if config.exists() else 0
    )


def _noise(speech: SpeechInfo, seed: int) -> EncoderInput:
    """Return the longest window that the model accepts, filled with random features."""
    frames = speech.max_frames
    features = np.random.default_rng(seed).uniform(-1, 1.5, (frames, speech.mels)).astype("f4")
    return EncoderInput(frames=frames, mels=speech.mels, data=features.tobytes())


def paced(
    engine: Engine,
    requests: Sequence[EngineRequest],
    seconds: float,
    ways: Sequence[EngineSpeculation],
) -> tuple[list[float], dict[str, list[int]]]:
    """Decode all requests for at most ``seconds``; return the tokens/s of each proposer, and the texts.

    The proposers take turns of a few steps, so that other load on the machine affects them equally.
    """
    texts: dict[str, list[int]] = {request.id: [] for request in requests}
    counted, took = [0] * len(ways), [0.0] * len(ways)
    _use(engine, ways[-1])
    for request in requests:
        engine.add(request)
    while not all(texts.values()):
        for output in engine.step():
            texts[output.request_id] += output.tokens
    steps, ended = 0, False
    while not ended:
        way = steps // TURN % len(ways)
        _use(engine, ways[way])
        began = time.perf_counter()
        outputs = engine.step()
        took[way] += time.perf_counter() - began
        counted[way] += sum(len(output.tokens) for output in outputs)
        for output in outputs:
            texts[output.request_id] += output.tokens
            ended |= output.finish_reason is not None
        steps += 1
        ended |= sum(took) > seconds
    engine.abort([request.id for request in requests])
    return [tokens / time_taken for tokens, time_taken in zip(counted, took, strict=True)], texts


def predicted(costs: RowCosts, sequences: int, rate: float) -> float:
    """Return the predicted best ratio to no speculation."""

    def gain(draft_tokens: int) -> float:
        tokens = sum(rate**i for i in range(draft_tokens + 1))
        return tokens * costs.seconds(sequences) / costs.seconds(sequences * (1 + draft_tokens))

    most = min(MOST_DRAFT_TOKENS, MOST_ROWS // sequences - 1)
    return max(gain(draft_tokens) for draft_tokens in range(most + 1))


@dataclass(frozen=True)
class Point:
    """Tokens/s without speculation, the ratio with it, and the predicted ratio, at one acceptance rate."""

    rate: float
    plain: float
    ratio: float
    predicted: float


@dataclass(frozen=True)
class Curve:
    """The figures of one number of sequences, by acceptance."""

    sequences: int
    points: list[Point]


def controlled(
    settings: EngineSettings,
    rates: Sequence[float],
    sizes: Sequence[int],
    tokens: int,
    seconds: float,
) -> list[Curve]:
    """Measure tokens per second by acceptance and batch size, with and without speculation in turn.

    Raises:
        AssertionError: a text differs from the one without speculation.
    """
    engine = load_engine(settings, resolve_model(settings.model))
    groups = len(engine._kv.groups)
    measured = measure_rows(
        engine._executor,
        groups,
        MOST_ROWS,
        engine.info.speech,
        blocks=engine._kv.pool.total,
        seconds=5.0,
    )
    engine._kv.pool.forget_all()
    costs = RowCosts(measured)
    print("seconds by rows:", {rows: round(taken, 4) for rows, taken in sorted(measured.items())})
    curves = []
    for sequences in sizes:
        requests = requests_of(engine, sequences, tokens)
        _, texts = paced(engine, requests, 1e9, [EngineSpeculation()])
        prompts = {r.id: r.payload.prompt for r in requests if isinstance(r.payload, Decoded)}
        known = {tuple(ids): [*ids, *texts[name]] for name, ids in prompts.items()}
        points = []
        for rate in rates:
            oracle = EngineSpeculation([Oracle(known, rate)], RowCosts(measured))
            (plain, speculation), got = paced(
                engine, requests, seconds, [EngineSpeculation(), oracle]
            )
            for name, text in got.items():
                assert text[: len(texts[name])] == texts[name][: len(text)], name
            best = predicted(costs, sequences, rate)
            points.append(Point(rate, plain, speculation / plain, best))
        curves.append(Curve(sequences, points))
    return curves


def _use(engine: Engine, speculation: EngineSpeculation) -> None:
    engine._speculation = speculation
    engine._scheduler.propose_drafts = speculation.propose_drafts


def conversations(items: int) -> dict[str, list[list[Any]]]:
    """Return held-out prompts of the bundled model's tasks; glossary questions use the trained wording."""
    held = heldout.read(2)
    tasks: dict[str, list[list[Any]]] = {
        task: [list(item.messages) for item in held if item.task == task][:items]
        for task in ("ticket", "redact")
    }
    rng = random.Random(0)
    tasks["glossary"] = [
        [
            {"role": "system", "content": "Answer from the glossary."},
            {"role": "user", "content": glossary.question(rng)[0]},
        ]
        for _ in range(items)
    ]
    return tasks


@dataclass
class Done:
    """One task with one proposer at a given number of concurrent conversations."""

    task: str
    at_once: int
    proposer: str
    seconds: float = 0.0
    tokens: int = 0
    proposed: int = 0
    accepted: int = 0

    @property
    def tokens_per_s(self) -> float:
        """Return generated tokens per second, prompt time included."""
        return self.tokens / self.seconds

    def add(self, llm: LLM, conversations: Sequence[Any]) -> list[str]:
        """Run these conversations; return their texts."""
        began = time.perf_counter()
        choices = [output.choices[0] for output in llm.chat(conversations, PARAMS)]
        self.seconds += time.perf_counter() - began
        self.tokens += sum(len(choice.token_ids) for choice in choices)
        self.proposed += sum(choice.timing.proposed for choice in choices)
        self.accepted += sum(choice.timing.accepted for choice in choices)
        return [choice.text for choice in choices]


def tasks(
    settings: EngineSettings, at_once: int, items: int, draft_model: str | None
) -> list[Done]:
    """Run each task without speculation and with each proposer, in turns of ``at_once`` conversations.

    Raises:
        AssertionError: a text differs from the one without speculation.
    """
    own: dict[str, Any] = {"weight_dtype": settings.weight_dtype, "threads": settings.threads}
    wanted = conversations(items)
    made: list[Done] = []
    with contextlib.ExitStack() as stack:
        engines: dict[str, LLM] = {
            way: stack.enter_context(
                LLM(
                    settings.model,
                    speculation=speculation,
                    draft_model=draft_model if way in DRAFT_WAYS else None,
                    kv_cache_tokens=16384,
                    **own,
                )
            )
            for way, speculation in {**WAYS, **(DRAFT_WAYS if draft_model else {})}.items()
        }
        for llm in engines.values():
            llm.chat(wanted["ticket"][:at_once], PARAMS)
        for task, all_of_it in wanted.items():
            sums = {proposer: Done(task, at_once, proposer) for proposer in engines}
            order = list(engines)
            for i in range(0, len(all_of_it), at_once):
                batch = all_of_it[i : i + at_once]
                texts = {way: sums[way].add(engines[way], batch) for way in order}
                assert all(own == texts["off"] for own in texts.values()), (task, i)
                order.append(order.pop(0))  # no proposer always goes first
            made += sums.values()
    return made


def figures_of_curves(name: str, curves: Sequence[Curve]) -> list[Figure]:
    """Return the ratios to no speculation, one figure for each number of sequences."""
    return [
        Figure(
            what=f"{name}: speculation, {curve.sequences} at once, by acceptance",
            unit="times",
            at=tuple(f"{point.rate:.0%}" for point in curve.points),
            measured=tuple(round(point.ratio, 2) for point in curve.points),
            date=date.today().isoformat(),
            command=COMMAND,
            target=(0.98,),
            remark=f"{statistics.median(point.plain for point in curve.points):.1f} tokens/s without; "
            "predicted " + ", ".join(f"{point.predicted:.2f}" for point in curve.points),
        )
        for curve in curves
    ]


def figures_of_tasks(done: Sequence[Done]) -> list[Figure]:
    """Return the ratios to no speculation, one figure for each task and number of conversations."""
    made = []
    for plain in (d for d in done if d.proposer == "off"):
        others = [
            d
            for d in done
            if (d.task, d.at_once) == (plain.task, plain.at_once) and d.proposer != "off"
        ]
        shares = ", ".join(
            f"{d.proposer} {d.accepted}/{d.proposed} accepted of {d.tokens} tokens" for d in others
        )
        made.append(
            Figure(
                what=f"bundled model: speculation, {plain.task}, {plain.at_once} at once",
                unit="times",
                at=tuple(d.proposer for d in others),
                measured=tuple(round(d.tokens_per_s / plain.tokens_per_s, 2) for d in others),
                date=date.today().isoformat(),
                command=f"{COMMAND} --tasks",
                target=(0.98,),
                remark=f"{plain.tokens_per_s:.0f} tokens/s without, prompts included; {shares}",
            )
        )
    return made


def main() -> None:
    """Measure, print, and write the figures if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument("--name", default="bundled model", help="name of the model in the results")
    parser.add_argument("--weight-dtype", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--sequences", default="1,2,4,8,16,32")
    parser.add_argument("--acceptance", default="0,0.5,0.7,0.9,1")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each output")

    parser.add_argument("--seconds", type=float, default=8.0, help="maximum duration of each run")
    parser.add_argument("--tasks", action="store_true", help="measure the bundled model's tasks")
    parser.add_argument(
        "--peer", type=Path, metavar="HOME", help="compare with peers, installed in this folder"
    )
    parser.add_argument(
        "--quick", action="store_true", help="with --peer: one round instead of three"
    )
    parser.add_argument(
        "--draft-model", help="with --tasks: for example galley-demo-draft, which is bundled"
    )
    parser.add_argument(
        "--items", type=int, default=64, help="with --tasks: conversations of each task"
    )
    parser.add_argument(
        "--results", type=machine_file, help="also write the figures to this results file"
    )
    options = parser.parse_args()
    settings = EngineSettings(
        model=options.model,
        weight_dtype=options.weight_dtype,
        threads=options.threads,
        speculation="off",
        prefix_cache=False,
        kv_cache_tokens=64 * (PROMPT_TOKENS + options.tokens + _encoder_rows(options.model)),
    )
    sizes = [int(part) for part in options.sequences.split(",")]
    rates = [float(part) for part in options.acceptance.split(",")]
    if options.peer:
        rounds, shape = 1 if options.quick else 3, "llama-1b"
        threads = options.threads or available_cores()
        paces, failures = lookup_peers.measure(options.peer, threads, rates, 96, rounds, shape)
        lookup_peers.show(paces, failures, Console())
        if options.results:
            put(options.results, lookup_peers.figures(paces, rates, rounds))
        return
    if options.tasks:
        done = [
            one
            for size in sizes
            for one in tasks(settings, size, options.items, options.draft_model)
        ]
        table = Table("task", "at once", "proposer", "tokens/s", "tokens", "proposed", "accepted")
        for one in done:
            cells = (one.task, one.at_once, one.proposer, round(one.tokens_per_s, 1), one.tokens)
            table.add_row(*map(str, cells), str(one.proposed), str(one.accepted))
        figures = figures_of_tasks(done)
    else:
        curves = controlled(settings, rates, sizes, options.tokens, options.seconds)
        table = Table("sequences", "acceptance", "without", "ratio", "predicted")
        for curve in curves:
            for point in curve.points:
                shown = (f"{n:.2f}" for n in (point.plain, point.ratio, point.predicted))
                table.add_row(str(curve.sequences), f"{point.rate:.0%}", *shown)
        figures = figures_of_curves(options.name, curves)
    Console().print(table)
    if options.results:
        put(options.results, figures)


if __name__ == "__main__":
    main()
