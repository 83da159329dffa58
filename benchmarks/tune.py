"""Compare `galley tune` with an exhaustive search of the same space: cost found, and time taken.

    python -m benchmarks.tune [MODEL] [--requests 90] [--json FILE]
    python -m benchmarks.tune --shape llama-1b --rate 1 --requests 20 --prompt 24 --output 16 --again 1
        --try weight_dtype=int8,int4 --try max_running=4,8,32

The trace has Poisson arrivals and lognormal lengths. With 1.24 billion weights, two cores compute a few
hundred tokens a second, hence the short texts of the second command. The exhaustive search serves the whole
trace with each candidate. Weights are packed, and the words of prompts looked up, before either search:
both need them, and the first search would pay for both. Then both winners serve the trace again in turns,
because the best of many noisy figures is too good.

Cost is CPU time, so other load on the machine matters less than it does to latencies. Starts of servers and
seconds of the trace that were replayed do not depend on the load at all.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console

from benchmarks.batching import checkpoint
from benchmarks.peers.checkpoint import SHAPES
from galley.machine import available_cores, cpu_and_cores
from galley.settings.engine import EngineSettings
from galley.settings.quality_gate import QualityGate
from galley.traffic.trace import read_trace
from galley.tune.goal import parse_goal
from galley.tune.job import Job, Wanted
from galley.tune.space import Candidate
from galley.tune.trials import Trial

GOAL: Final = "ttft p95 < 2s, tpot p95 < 200ms"
CORES: Final = available_cores()
SPACE: Final = (
    "kv_dtype=bfloat16",
    "max_batch_tokens=64,512",
    "max_running=4,32",
    f"threads={max(1, CORES // 2)},{CORES}",
    "replicas=1",
    "speculation=off",
)


def write_trace(file: Path, options: argparse.Namespace) -> None:
    """Write a generated trace in GuideLLM's form."""
    random = np.random.default_rng(0)
    count = options.requests
    times = np.cumsum(random.exponential(1 / options.rate, count))
    prompts = np.clip(random.lognormal(np.log(options.prompt), 0.7, count), 16, 600)
    outputs = np.clip(random.lognormal(np.log(options.output), 0.7, count), 4, 200)
    lines = [
        {"timestamp": float(t), "input_length": int(p), "output_length": int(o)}
        for t, p, o in zip(times, prompts, outputs, strict=True)
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")


def prepared(options: argparse.Namespace, folder: Path) -> Job:
    """Return the job, with all candidates predicted."""
    trace = folder / "trace.jsonl"
    write_trace(trace, options)
    wanted = Wanted(
        settings=EngineSettings(
            model=checkpoint(options.shape) if options.shape else options.model
        ),
        goal=parse_goal(options.slo),
        turns=read_trace(trace),
        trace="generated",
        speed=1.0,
        tried=(*SPACE, *options.tried),
        gate=QualityGate({}),
    )
    return Job.prepare(wanted, folder / "tune.json")


def warm_up(job: Job) -> float:
    """Have weights packed and words of prompts looked up, and return the seconds that this took."""
    began = time.monotonic()
    by_type = {one.candidate.weight_dtype: one.candidate for one in job.tuning.considered}
    for candidate in by_type.values():
        job.bench.measure(candidate, 1)
    return time.monotonic() - began


def main() -> None:
    """Search both ways, and print what each found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--shape", choices=SHAPES, help="a random model of this shape instead")
    parser.add_argument("--slo", default=GOAL)
    parser.add_argument("--requests", type=int, default=90)
    parser.add_argument("--rate", type=float, default=12.0, help="requests a second")
    parser.add_argument("--prompt", type=float, default=100, help="median tokens of a prompt")
    parser.add_argument("--output", type=float, default=37, help="median tokens of an answer")
    parser.add_argument("--try", dest="tried", action="append", default=[], metavar="SETTING=V,V")
    parser.add_argument("--candidates", type=int, default=9)
    parser.add_argument("--again", type=int, default=3, help="further runs of both winners")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as at:
        began = time.monotonic()
        job = prepared(options, Path(at))
        began += warm_up(job)
        tuned = job.search(options.candidates, on_end=lambda: None, on_trial=console.print)
        middle = time.monotonic()
        searched = [*job.tuning.trials]
        every = [
            _tried(job, one.candidate, options.requests, console) for one in job.tuning.considered
        ]
        ended = time.monotonic()
        goal = job.wanted.goal
        best = min(every, key=lambda trial: trial.rank(goal))
        winners = {"tune": tuned.candidate, "exhaustive": best.candidate}
        costs: dict[str, list[float]] = {name: [] for name in winners}
        for _ in range(options.again):
            for name, candidate in winners.items():
                costs[name].append(job.bench.measure(candidate, options.requests).cost)
    found = {
        "machine": cpu_and_cores(),
        "candidates": len(every),
        "seconds": {"tune": middle - began, "exhaustive": ended - middle},
        "share of the time": (middle - began) / (ended - middle),
        "starts": {"tune": len(searched), "exhaustive": len(every)},
        "seconds replayed": {"tune": replayed(job, searched), "exhaustive": replayed(job, every)},
        "the same winner": len(set(winners.values())) == 1,
        "winners": {name: str(candidate) for name, candidate in winners.items()},
        "costs, CPU s per 1,000 tokens": costs,
        "cost of tune's to the best": statistics.median(costs["tune"])
        / statistics.median(costs["exhaustive"]),
        "exhaustive": [
            dataclasses.asdict(_Row(str(t.candidate), t.cost, t.factor(goal))) for t in every
        ],
    }
    console.print_json(json.dumps(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


def replayed(job: Job, trials: Sequence[Trial]) -> float:
    """Return the seconds of the trace that trials replayed."""
    return sum(job.wanted.turns[trial.turns - 1].due / job.wanted.speed for trial in trials)


@dataclasses.dataclass(frozen=True)
class _Row:
    candidate: str
    cost: float
    of_the_goal: float


def _tried(job: Job, candidate: Candidate, turns: int, console: Console) -> Trial:
    trial = job.bench.measure(candidate, turns)
    console.print(f"{candidate}: {trial.cost:.3f} CPU s per 1,000 tokens {trial.problem}")
    return trial


if __name__ == "__main__":
    main()
