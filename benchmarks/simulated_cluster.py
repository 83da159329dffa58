"""Compare what ``galley plan cluster`` predicts with two and three real replicas.

    python -m benchmarks.simulated_cluster [MODEL] [--rate R] [--seconds S] [--share CPUS] [--json FILE]

Each replica is an engine process that may use ``--share`` of a CPU (a quota of cgroups, so root and Linux
are needed), so that two or three of them on one machine are as fast as one alone. One replica is measured
with ``galley bench serve``; the simulation is calibrated on that. Then one trace, of Poisson arrivals with
shared prefixes, is replayed against two and three replicas, and simulated. Run it on an idle machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from galley.bench.serve.arrivals import poisson
from galley.bench.serve.server import started

_PERIOD_US = 5_000
_CGROUPS = Path("/sys/fs/cgroup")
_SEATS = 8
_FLAGS = ("--threads", "1", "--max-running", str(_SEATS), "--kv-cache-tokens", "40000")
_PREFIX_TOKENS, _PREFIXES = 256, 12


@contextmanager
def limited(pids: list[int], share: float) -> Iterator[None]:
    """Let each process use ``share`` of a CPU at most."""
    groups = []
    try:
        for pid in pids:
            if (_CGROUPS / "cgroup.controllers").exists():
                group = _CGROUPS / f"galley-{pid}"
                group.mkdir()
                (group / "cpu.max").write_text(f"{round(share * _PERIOD_US)} {_PERIOD_US}")
            else:
                group = _CGROUPS / "cpu" / f"galley-{pid}"
                group.mkdir()
                (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(round(share * _PERIOD_US)))
            groups.append(group)
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for group in groups:
            for left in (group / "cgroup.procs").read_text().split():
                (group.parent / "cgroup.procs").write_text(left)
            group.rmdir()


@contextmanager
def replicas(model: str, count: int, share: float) -> Iterator[str]:
    """Start a server with ``count`` limited engines; yield its URL."""
    with started(model, *_FLAGS, "--replicas", str(count)) as (url, pid):
        engines = [
            child.pid
            for child in psutil.Process(pid).children(recursive=True)
            if any("service.worker" in part for part in child.cmdline())
        ]
        if len(engines) != count:
            raise SystemExit(f"{len(engines)} engine processes were found, not {count}")
        with limited(engines, share):
            yield url


def galley(*arguments: str) -> None:
    """Run a command of Galley."""
    subprocess.run([sys.executable, "-m", "galley", *arguments], check=True)


def write_trace(file: Path, rate: float, seconds: float) -> None:
    """Write requests with Poisson arrivals, of which each begins with one of a few prefixes."""
    random = np.random.default_rng(7)
    with file.open("w", encoding="utf-8") as stream:
        for number, due in enumerate(poisson(rate, seed=7, seconds=seconds)):
            own = int(np.clip(random.lognormal(4.2, 0.5), 16, 400))
            line = {
                "timestamp": round(1000 * due, 3),
                "input_length": _PREFIX_TOKENS + own,
                "output_length": int(np.clip(random.lognormal(3.4, 0.5), 4, 120)),
                "hash_ids": [int(random.integers(_PREFIXES)), _PREFIXES + 2 * number]
                + [_PREFIXES + 2 * number + 1] * (own > _PREFIX_TOKENS),
                "block_size": _PREFIX_TOKENS,
            }
            stream.write(json.dumps(line) + "\n")


def machine_row(file: Path) -> None:
    """Write a table with a machine whose speed is fitted by the calibration anyway."""
    row = [
        {
            "name": "here",
            "what": "a share of a CPU",
            "kind": "cpu",
            "memory": 16,
            "bandwidth": 20,
            "tflops": {"float32": 0.1, "bfloat16": 0.1, "int8": 0.2},
        }
    ]
    file.write_text(json.dumps(row), encoding="utf-8")  # JSON is YAML


def figures(report: dict[str, Any]) -> dict[str, float]:
    """Return what is compared, of a replay."""
    point = report["points"][0]
    if point["completed"] != point["requests"]:
        raise SystemExit(f"requests failed: {point['errors']} {point['details']}")
    return {
        "TTFT P50 ms": 1000 * point["ttft_s"]["p50"],
        "TTFT P95 ms": 1000 * point["ttft_s"]["p95"],
        "tokens/s": point["output_tokens_per_s"],
        "TPOT P50 ms": 1000 * point["tpot_s"]["p50"],
        "cached %": 100 * point["cached_share"],
    }


def predicted(report: dict[str, Any]) -> dict[str, float]:
    """Return the same figures of a simulation."""
    found = report["answers"][0]["chosen"]
    return {
        "TTFT P50 ms": 1000 * found["ttft_s"]["p50"],
        "TTFT P95 ms": 1000 * found["ttft_s"]["p95"],
        "tokens/s": found["output_tokens_per_s"],
        "TPOT P50 ms": 1000 * found["tpot_s"]["p50"],
        "cached %": 100 * found["cached_share"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument(
        "--rate", type=float, default=12.0, help="requests a second for each replica"
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--share", type=float, default=0.4, help="of a CPU, for each replica")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if os.geteuid():
        raise SystemExit("quotas of CPU time need root")
    console, rows = Console(), {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hardware = folder / "hardware.yaml"
        measured = {length: folder / f"measured{length}.json" for length in (32, 512)}
        machine_row(hardware)
        with replicas(options.model, 1, options.share) as url:
            for length, file in measured.items():
                galley(
                    *("bench", "serve", url, "--concurrency", f"1,{_SEATS // 2},{_SEATS}"),
                    *("--requests", "60", "--prompt-tokens", str(length), "--output-tokens", "32"),
                    *("--json", str(file)),
                )
        for count in (2, 3):
            trace, real, plan = (folder / f"{what}{count}" for what in ("trace", "real", "plan"))
            write_trace(trace, options.rate * count, options.seconds)
            with replicas(options.model, count, options.share) as url:
                galley("replay", str(trace), url, "--json", str(real))
            galley(
                *(
                    "plan",
                    "cluster",
                    options.model,
                    "--machine",
                    "here",
                    "--hardware",
                    str(hardware),
                ),
                *(part for file in measured.values() for part in ("--measured", str(file))),
                *("--trace", str(trace), "--replicas", str(count)),
                *("--router", "galley", "--max-running", str(_SEATS), "--json", str(plan)),
            )
            rows[count] = (
                figures(json.loads(real.read_text())),
                predicted(json.loads(plan.read_text())),
            )
    table = Table("replicas", "figure", "real", "simulated", "simulated / real")
    for count, (real_figures, simulated) in rows.items():
        for what, value in real_figures.items():
            ratio = simulated[what] / value if value else float("nan")
            table.add_row(
                str(count), what, f"{value:.1f}", f"{simulated[what]:.1f}", f"{ratio:.2f}"
            )
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
