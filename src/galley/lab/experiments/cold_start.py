"""A cold start by phase."""

import subprocess
import sys
import time
from typing import Final

from galley.bench.report import Spread
from galley.bench.serve.bars import Series
from galley.bench.serve.server import started
from galley.lab.bench import Lab
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding


def _run(lab: Lab) -> Finding:
    totals = []
    for _ in range(2 if lab.quick else 5):
        began = time.monotonic()
        with started(quiet=True, settings=lab.with_()):
            totals.append(time.monotonic() - began)
    engine = lab.engine()
    phases = {name: s for name, s in engine.info.phases.items() if name != "ready"}
    total = Spread.of(totals)
    loading = sum(phases.values())
    shares = Spread.of([100 * loading / seconds for seconds in totals])
    rest = max(0.0, total.median - loading)
    rows = {**phases, "processes, imports, server": rest}
    assert engine.info.ledger is not None  # Galley's own engine has one
    reading = engine.info.ledger.weights / lab.peaks.read_huge.median
    importing = lab.spread(_imported).median
    return Finding(
        figures=[Figure(measured=shares, predicted=100 * reading / (reading + importing))],
        header=["phase", "ms", "of the start"],
        rows=[[n, f"{1e3 * s:.1f}", f"{s / total.median:.0%}"] for n, s in rows.items()],
        pictures=[
            Bars(
                title="From the command to the first request",
                unit="ms",
                names=[*rows],
                series=[Series("measured", [1e3 * seconds for seconds in rows.values()])],
            )
        ],
        notes=[
            f"From the start of the process to the readiness of the server: {total.median:.2f} s. Packed "
            "weights are on disk from earlier starts, and the kernel may have them in memory.",
            f"Reading the weights once takes {1e3 * reading:.1f} ms; a process that imports the server and "
            f"does nothing takes {1e3 * importing:.0f} ms.",
        ],
    )


def _imported() -> float:
    """Return the seconds of a process that imports what a server imports."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import galley.server.run"], check=True)
    return time.monotonic() - began


EXPERIMENT: Final = Experiment(
    name="cold-start",
    title="A cold start by phase",
    statement="Most of a cold start is loading the model.",
    source="ServerlessLLM, arXiv:2401.14351",
    prediction="The weights, read once at the memory's bandwidth, beside a process that imports the "
    "server.",
    claims=(Claim(figure="share of the start that is loading the model", unit="%", low=50),),
    run=_run,
)
