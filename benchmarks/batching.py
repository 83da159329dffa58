"""Compare static, dynamic and continuous batching on the same requests: latency against load.

    python -m benchmarks.batching [MODEL] [--weight-dtype int4] [--seconds 20] [--html FILE]
        [--results benchmarks/results/FILE]
    python -m benchmarks.batching --shape llama-1b --weight-dtype int4 --seconds 20 --shares 0.5,0.95

Answers have 20 to 500 tokens, drawn uniformly (``--answers``). A closed loop of four times as many requests
as the engine has slots, half of them at a time, measures each policy's maximum throughput. Then each policy
gets Poisson arrivals at several shares of continuous batching's maximum rate. ``--shape`` writes a random
model of that shape to ``build/checkpoints`` once (``llama-1b``: 1.24 billion weights, 2.5 GB). Its answers
have 8 to 200 tokens, since a static batch is as long as its longest one. ``--html`` draws the curves of
all policies on one page. Run it on an idle machine: ``llama-1b`` takes about seven minutes.
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
from galley.bench.serve.chart import Line, chart
from galley.bench.serve.client import Client
from galley.bench.serve.html import document, facts, table
from galley.bench.serve.lengths import Lengths
from galley.bench.serve.results import Point
from galley.bench.serve.server import started
from galley.bench.serve.session import Plan, run_all
from galley.bench.serve.workload import Workload
from galley.machine import cpu_and_cores

POLICIES: Final = ("static", "dynamic", "continuous")
CHECKPOINTS: Final = Path(__file__).parents[1] / "build/checkpoints"
ANSWERS: Final = (20, 500)
ANSWERS_OF_SHAPES: Final = (8, 200)
COLUMNS: Final = ("policy", "load", "requests/s", "tokens/s", "TTFT P50", "latency P50", "P95")


@dataclass(frozen=True)
class Curve:
    """The results of one batching policy."""

    policy: str
    saturated: Point
    open: list[Point]


def workload(answers: tuple[int, int]) -> Workload:
    """Return requests whose answers have a number of tokens between these, drawn uniformly."""
    return Workload(
        endpoint="completions",
        prompt_tokens=Lengths("fixed", 64),
        output_tokens=Lengths("uniform", *answers),
        body={"temperature": 0},
    )


def measured(
    url: str, plan: Plan, answers: tuple[int, int], on_progress: Callable[[str, int], None]
) -> list[Point]:
    """Run the requests of ``plan``."""
    client = Client(url, timeout=600)
    report = asyncio.run(
        run_all(
            client,
            plan,
            workload(answers),
            model=None,
            target=url,
            workload_facts={"prompts": "64 tokens", "answers": answers_text(answers)},
            machine=cpu_and_cores(),
            on_progress=on_progress,
        )
    )
    return report.points


def answers_text(answers: tuple[int, int]) -> str:
    """Return a description of the answers."""
    return f"{answers[0]} to {answers[1]} tokens, uniform"


def checkpoint(shape: str) -> str:
    """Return the random checkpoint of a shape, written once."""
    folder = CHECKPOINTS / shape
    if not (folder / "config.json").exists():
        write_shape(folder, shape)
    return str(folder)


def curves(
    model: str,
    seats: int,
    seconds: float,
    shares: tuple[float, ...],
    answers: tuple[int, int],
    *flags: str,
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
                # The engine has warmed up; requests of such length would only take their time again.
                closed = Plan(kind="concurrency", loads=(2 * seats,), requests=4 * seats, warm_up=0)
                [saturated] = measured(url, closed, answers, on_progress)
                rates = rates or tuple(share * saturated.requests_per_s for share in shares)
                arrivals = Plan(kind="rate", loads=rates, seconds=seconds, warm_up=0)
                points = measured(url, arrivals, answers, on_progress)
            made.append(Curve(policy, saturated, points))
            bar.advance(task)
    return made[::-1]


def figures(
    name: str, seats: int, shares: tuple[float, ...], answers: tuple[int, int], made: list[Curve]
) -> list[Figure]:
    """Return the figures for benchmarks/results."""
    today, command = date.today().isoformat(), "python -m benchmarks.batching"
    most = [curve.saturated.output_tokens_per_s for curve in made]
    remark = (
        f"answers of {answers_text(answers)}, {seats} seats, {2 * seats} at once; continuous is "
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


def rows(made: list[Curve]) -> list[tuple[str, ...]]:
    """Return the rows of the table, a row for each load of each policy."""
    found: list[tuple[str, ...]] = []
    for curve in made:
        for point in (curve.saturated, *curve.open):
            assert point.ttft_s
            assert point.latency_s
            found.append(
                (
                    curve.policy,
                    point.name,
                    f"{point.requests_per_s:.2f}",
                    f"{point.output_tokens_per_s:.0f}",
                    f"{point.ttft_s.p50:.2f} s",
                    f"{point.latency_s.p50:.2f} s",
                    f"{point.latency_s.p95:.2f} s",
                )
            )
    return found


def page(name: str, conditions: dict[str, str], made: list[Curve]) -> str:
    """Return a page with the curves of all policies."""
    parts = [facts({"model": name, "machine": cpu_and_cores(), **conditions})]
    best = [curve.saturated.output_tokens_per_s for curve in made]
    parts.append(
        f"<p>Continuous batching generates {best[2] / best[0]:.2f} times the tokens of static "
        f"batching, and {best[2] / best[1]:.2f} times those of dynamic batching.</p>"
    )
    for metric, title in (("latency_s", "End-to-end latency"), ("ttft_s", "Time to first token")):
        for quantile in ("p50", "p95"):
            lines = [
                Line(
                    curve.policy,
                    [point.load for point in curve.open],
                    [getattr(getattr(point, metric), quantile, None) for point in curve.open],
                    color,
                    dots=True,
                )
                for color, curve in enumerate(made)
            ]
            heading = f"{title}, {quantile.upper()}"
            parts.append(chart(heading, "requests/s", "seconds", lines))
    parts.append(table(COLUMNS, rows(made)))
    return document(f"Static, dynamic and continuous batching: {name}", "".join(parts))


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
        "--answers",
        type=lambda text: tuple(map(int, text.split(","))),
        help="least and most tokens of an answer",
    )
    parser.add_argument("--html", type=Path, help="draw the curves on this page")
    parser.add_argument(
        "--results", type=machine_file, help="also write the figures to this results file"
    )
    options = parser.parse_args()
    flags = ("--weight-dtype", options.weight_dtype, "--no-prefix-cache", "--speculation", "off")
    model = checkpoint(options.shape) if options.shape else options.model
    name = options.name or options.shape or "bundled model"
    answers = options.answers or (ANSWERS_OF_SHAPES if options.shape else ANSWERS)
    made = curves(model, options.seats, options.seconds, options.shares, answers, *flags)
    shown = Table(*COLUMNS)
    for row in rows(made):
        shown.add_row(*row)
    Console().print(shown)
    if options.html:
        conditions = {
            "weights": options.weight_dtype,
            "answers": answers_text(answers),
            "slots": str(options.seats),
        }
        options.html.write_text(page(name, conditions, made), encoding="utf-8")
    if options.results:
        put(options.results, figures(name, options.seats, options.shares, answers, made))


if __name__ == "__main__":
    main()
