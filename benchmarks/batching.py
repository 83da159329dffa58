"""Compare static, dynamic and continuous batching on the same requests: latency against load.

    python -m benchmarks.batching [MODEL] [--quantize int4] [--seconds 20]
        [--results benchmarks/results/FILE]
    python -m benchmarks.batching --shape llama-1b --quantize int4 --shares 0.5,0.95

Answers have 20 to 500 tokens, drawn uniformly. A closed loop with twice as many requests as the engine has
slots measures each policy's maximum throughput. Then each policy gets Poisson arrivals at several shares of
continuous batching's maximum rate. ``--shape`` writes a random model of that shape to ``build/checkpoints``
once (``llama-1b``: 1.24 billion weights, 2.5 GB). Run it on an idle machine.
"""

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from scripts.benchmarks_page import Figure

from benchmarks.peers.checkpoint import SHAPES, write_shape
from benchmarks.results_file import machine_file, put
from galley.bench.serve.client import Client
from galley.bench.serve.lengths import Lengths
from galley.bench.serve.results import Point
from galley.bench.serve.server import started
from galley.bench.serve.session import Plan, run_all
from galley.bench.serve.workload import Workload
from galley.machine import cpu_and_cores

POLICIES: Final = ("static", "dynamic", "continuous")
CHECKPOINTS: Final = Path(__file__).parents[1] / "build/checkpoints"
WORKLOAD_FACTS: Final = {"prompts": "64 tokens", "answers": "20 to 500 tokens, uniform"}
WORKLOAD: Final = Workload(
    endpoint="completions",
    prompt_tokens=Lengths("fixed", 64),
    output_tokens=Lengths("uniform", 20, 500),
    body={"temperature": 0},
)


@dataclass(frozen=True)
class Curve:
    """The results of one batching policy."""

    policy: str
    saturated: Point
    open: list[Point]


def measured(url: str, plan: Plan, on_progress: Callable[[str, int], None]) -> list[Point]:
    """Run the requests of ``plan``."""
    client = Client(url, timeout=600)
    report = asyncio.run(
        run_all(
            client,
            plan,
            WORKLOAD,
            model=None,
            target=url,
            workload_facts=dict(WORKLOAD_FACTS),
            machine=cpu_and_cores(),
            on_progress=on_progress,
        )
    )
    return report.points


def checkpoint(shape: str) -> str:
    """Return the random checkpoint of a shape, written once."""
    folder = CHECKPOINTS / shape
    if not (folder / "config.json").exists():
        write_shape(folder, shape)
    return str(folder)


def curves(
    model: str, seats: int, seconds: float, shares: tuple[float, ...], *flags: str
) -> list[Curve]:
    """Run each policy, continuous batching first, since its rate sets the load of the others."""
    made: list[Curve] = []
    rates: tuple[float, ...] = ()
    with Progress() as bar:
        task = bar.add_task("", total=len(POLICIES))
        for policy in reversed(POLICIES):
            bar.update(task, description=policy)

            def on_progress(name: str, position: int, policy: str = policy) -> None:
                bar.update(task, description=f"{policy}, {name}")

            own = ("--batching", policy, "--max-running", str(seats), "--max-queue", "10000")
            with started(model, *own, "--request-timeout", "1800", *flags) as (url, _):
                closed = Plan(kind="concurrency", loads=(2 * seats,), seconds=2 * seconds)
                [saturated] = measured(url, closed, on_progress)
                rates = rates or tuple(share * saturated.requests_per_s for share in shares)
                points = measured(url, Plan(kind="rate", loads=rates, seconds=seconds), on_progress)
            made.append(Curve(policy, saturated, points))
            bar.advance(task)
    return made[::-1]


def figures(name: str, seats: int, shares: tuple[float, ...], made: list[Curve]) -> list[Figure]:
    """Return the figures for benchmarks/results."""
    today, command = date.today().isoformat(), "python -m benchmarks.batching"
    most = [curve.saturated.output_tokens_per_s for curve in made]
    remark = (
        f"answers of 20 to 500 tokens, {seats} seats, {2 * seats} at once; continuous is "
        f"{most[2] / most[0]:.2f} times static, {most[2] / most[1]:.2f} times dynamic"
    )
    throughput = Figure(
        what=f"{name}: throughput by batching policy",
        unit="tokens/s",
        at=POLICIES,
        measured=tuple(round(value) for value in most),
        date=today,
        command=command,
        remark=remark,
    )
    latencies = [
        Figure(
            what=f"{name}: latency under {curve.policy} batching, P50 by load",
            unit="s",
            at=tuple(f"{share:.0%}" for share in shares),
            measured=tuple(round(p.latency_s.p50, 2) if p.latency_s else None for p in curve.open),
            date=today,
            command=command,
            better="lower",
            remark="load: share of continuous batching's maximum request rate",
        )
        for curve in made
    ]
    return [throughput, *latencies]


def main() -> None:
    """Measure, print, and write the figures if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument("--shape", choices=SHAPES, help="a random model of this shape instead")
    parser.add_argument("--name", default="", help="name of the model in the results")
    parser.add_argument("--weight-dtype", default="auto")
    parser.add_argument("--seats", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of each open loop")
    parser.add_argument(
        "--shares",
        type=lambda text: tuple(map(float, text.split(","))),
        default=(0.25, 0.5, 0.75, 0.95),
        help="arrival rates as shares of continuous batching's maximum rate",
    )
    parser.add_argument(
        "--results", type=machine_file, help="also write the figures to this results file"
    )
    options = parser.parse_args()
    flags = ("--weight-dtype", options.weight_dtype, "--no-prefix-cache", "--speculation", "off")
    model = checkpoint(options.shape) if options.shape else options.model
    made = curves(model, options.seats, options.seconds, options.shares, *flags)
    table = Table("policy", "load", "requests/s", "tokens/s", "TTFT P50", "latency P50", "P95")
    for curve in made:
        for point in (curve.saturated, *curve.open):
            assert point.ttft_s
            assert point.latency_s
            table.add_row(
                curve.policy,
                point.name,
                f"{point.requests_per_s:.2f}",
                f"{point.output_tokens_per_s:.0f}",
                f"{point.ttft_s.p50:.2f} s",
                f"{point.latency_s.p50:.2f} s",
                f"{point.latency_s.p95:.2f} s",
            )
    Console().print(table)
    if options.results:
        name = options.name or options.shape or "bundled model"
        put(options.results, figures(name, options.seats, options.shares, made))


if __name__ == "__main__":
    main()
