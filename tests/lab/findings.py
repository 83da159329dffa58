"""Findings that were made up, to test what becomes of them."""

from galley.bench.serve.bars import Series
from galley.bench.serve.chart import Line
from galley.formats.source import BUNDLED_SPEECH
from galley.lab.experiment import Bars, Claim, Curves, Figure, Finding
from galley.lab.run import Outcome, Results
from tests.peaks import peaks_of

PEAKS = peaks_of(1e9, cpu="<a CPU>")
CONDITIONS = {
    "model": "<m&m>",
    "run": "quick",
    "speech": BUNDLED_SPEECH,
    "recordings": "/calls.jsonl",
}
TWICE = Claim(figure="gain", unit="times", low=2, high=5)


def results(**outcomes: Outcome) -> Results:
    return Results(conditions=dict(CONDITIONS), peaks=PEAKS, outcomes=outcomes)


def finding(measured: float) -> Finding:
    return Finding(
        figures=[Figure.exact(measured, 3.0)],
        header=["<what>", "figure"],
        rows=[["a & b", "1"]],
        pictures=[
            Curves(title="<lines>", x="x", y="y", lines=[Line("l", [0.0, 1.0], [1.0, None])]),
            Bars(title="<bars>", unit="MB", names=["<n>"], series=[Series("s", [1.0])]),
        ],
    )
