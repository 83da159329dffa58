"""Test a saturated server for ten minutes while engines are killed and stalled and clients misbehave.

    python -m benchmarks.faults [MODEL] --seconds 600 --clients 64 --seed 1 --json FILE
    python -m benchmarks.faults --show --seed 1

Clients disconnect, read slowly and send invalid requests. Starts a real ``galley serve`` of MODEL (default:
the bundled one) with fewer sequence slots than clients. The expected text of every prompt, greedy and
seeded, is collected before the first fault. After that every request must end complete and correct, or be
refused at admission. The exit status is 1 if one did not, if a KV block leaked, or if the server's memory
grew by 2 % or more. The schedule depends on the seed alone; ``--show`` prints it.
"""

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from datetime import date
from pathlib import Path

from scripts.benchmarks_page import Figure

from benchmarks.faults.run import MOST_GROWTH, Result, run
from benchmarks.faults.schedule import faults
from benchmarks.results_file import put
from galley.bench.serve.server import started
from galley.machine import cpu_and_cores


def main() -> None:
    """Run, print the report, and exit with 1 if a guarantee was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print the schedule and exit")
    parser.add_argument(
        "--warm-up",
        type=float,
        default=60.0,
        help="seconds before the first memory sample that counts",
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--results", type=Path, help="also write the figures to this results file")
    arguments = parser.parse_args()
    seed, seconds, clients = arguments.seed, arguments.seconds, arguments.clients
    for fault in faults(seed, seconds):
        print(
            f"{fault.at:8.3f} s  {fault.kind}{f' for {fault.seconds} s' if fault.seconds else ''}"
        )
    if arguments.show:
        return
    # Fewer slots than clients, so that some requests wait and some are refused.
    places = ("--max-running", str(clients // 2), "--max-queue", str(clients * 3 // 8))
    with started(arguments.model, *places) as (url, pid):
        warm_up = min(arguments.warm_up, seconds / 4)
        result = asyncio.run(
            run(url, pid, seed=seed, seconds=seconds, clients=clients, warm_up=warm_up)
        )
    figures = {"machine": cpu_and_cores(), **result.shown()}
    print(json.dumps(figures, indent=2))
    if arguments.results:
        put(arguments.results, table(result, "python -m benchmarks.faults"))
    if arguments.json:
        schedule = [asdict(fault) for fault in faults(seed, seconds)]
        arguments.json.write_text(json.dumps(figures | {"schedule": schedule}, indent=2) + "\n")
    sys.exit(bool(broken(result)))


def table(result: Result, command: str) -> list[Figure]:
    """Return the figures for the results page."""
    record, today = result.record, date.today().isoformat()
    what = f"Fault schedule, {result.seconds:g} s, {result.clients} clients"
    counts = {
        "faults injected": result.injected.total(),
        "requests": record.requests,
        "lost": len(record.lost),
        "refused at admission": record.outcomes["refused"],
        "streams resumed": record.resumed,
        "texts compared": record.compared,
        "KV blocks leaked": result.leaked_blocks,
    }
    injected = ", ".join(f"{count:,} {kind}" for kind, count in result.injected.items())
    growth = 100 * result.memory_growth
    return [
        Figure(
            what=what,
            unit="count",
            at=tuple(counts),
            measured=tuple(counts.values()),
            date=today,
            command=command,
            remark=f"seed {result.seed}; {injected}; {result.restarts} engines replaced",
        ),
        Figure(
            what=f"{what}: growth of the server's memory",
            unit="%",
            at=("",),
            measured=(float(f"{growth:.2g}"),),
            date=today,
            command=command,
            target=(100 * MOST_GROWTH,),
            better="lower",
            remark=f"from {result.memory[0] / 1e6:.1f} MB after the warm-up",
        ),
    ]


def broken(result: Result) -> list[str]:
    """Return the guarantees that the run broke."""
    found = [f"lost: {lost}" for lost in result.record.lost]
    if result.leaked_blocks:
        found.append(f"{result.leaked_blocks} blocks leaked")
    if result.memory_growth >= MOST_GROWTH:
        found.append(f"memory grew by {result.memory_growth:.1%}")
    return found


if __name__ == "__main__":
    main()
