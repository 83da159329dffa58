"""The report of runs as one self-contained HTML file: no scripts, no network."""

from collections.abc import Callable, Sequence
from html import escape
from itertools import accumulate
from typing import Final, TypeAlias

from galley.bench.serve.chart import Line, chart
from galley.bench.serve.compare import comparison_rows, fidelity_text
from galley.bench.serve.html import document, facts, table
from galley.bench.serve.results import Point, Quantiles, Report

_PARTS: Final = (("p50", "P50"), ("p95", "P95"), ("p99", "P99"))
_CDFS: Final = (
    ("ttft_s", "Time to first token"),
    ("tpot_s", "Time per output token"),
    ("inter_token_s", "Inter-token latency"),
    ("latency_s", "End to end"),
)
_Named: TypeAlias = tuple[str, Report]
_Axis: TypeAlias = Callable[[Point, str], float | None]
"""Returns a coordinate of a run for a quantile: ``p50``, ``p95`` or ``p99``."""


def page(reports: Sequence[_Named]) -> str:
    """Render one report, or two side by side; the second's lines are all dashed.

    Args:
        reports: the name and the figures of each report.
    """
    title = "galley bench serve: " + " and ".join(name for name, _ in reports)
    charts = [
        _section("Latency against throughput", _against_throughput(reports)),
        _section("Cost against latency", _cost(reports)),
        _section("Distributions", _distributions(reports)),
        _section("Timeline of each run", _timelines(reports)),
    ]
    heads = [_head(name, report) for name, report in reports]
    return document(title, "".join([*heads, *charts]))


def _section(title: str, charts: Sequence[str]) -> str:
    drawn = "".join(charts)
    return f'<h2>{escape(title)}</h2><div class="charts">{drawn}</div>' if drawn else ""


def _head(name: str, report: Report) -> str:
    known = {
        "server": report.target,
        "model": report.model,
        "measured": f"{report.started}, galley {report.galley} on {report.client}",
        **report.workload,
    }
    if report.objective:
        limits = (f"{metric} at most {most:g} s" for metric, most in report.objective.items())
        known["objective"] = ", ".join(limits)
    if report.fidelity is not None:
        known["quality"] = fidelity_text(report.fidelity)
    if report.price_per_hour is not None:
        known["price"] = f"${report.price_per_hour:g} per hour"
    figures = table(
        ["load", *(point.name for point in report.points)], comparison_rows(report.points)
    )
    errors = "".join(
        f'<p class="bad">{escape(f"{p.name}: {n} x {kind}: {p.details[kind]}")}</p>'
        for p in report.points
        for kind, n in p.errors.items()
    )
    return f"<h2>{escape(name)}</h2>{facts(known)}{figures}{errors}"


def _prefix(reports: Sequence[_Named], name: str) -> str:
    return f"{name}, " if len(reports) > 1 else ""


def _curves(
    reports: Sequence[_Named], x: _Axis, y: _Axis, parts: Sequence[tuple[str, str]]
) -> list[Line]:
    """Return a line for each report and quantile through its points, in the order of the runs."""
    lines = []
    for number, (name, report) in enumerate(reports):
        for color, (part, label) in enumerate(parts):
            lines.append(
                Line(
                    _prefix(reports, name) + label,
                    [x(point, part) or 0.0 for point in report.points],
                    [None if x(p, part) is None else y(p, part) for p in report.points],
                    color,
                    dashed=number > 0,
                    dots=True,
                    labels=[point.name for point in report.points],
                )
            )
    return lines


def _quantile(field: str, unit: float) -> _Axis:
    """Return a function that reads a quantile of a metric, times ``unit``."""

    def read(point: Point, part: str) -> float | None:
        quantiles: Quantiles | None = getattr(point, field)
        value = None if quantiles is None else quantiles.shown(part)
        return None if value is None else unit * value

    return read


def _against_throughput(reports: Sequence[_Named]) -> list[str]:
    tokens = any(point.output_tokens_per_s for _, report in reports for point in report.points)
    unit = "output tokens/s" if tokens else "requests/s"

    def throughput(point: Point, part: str) -> float:
        return point.output_tokens_per_s if tokens else point.requests_per_s

    return [
        chart(title, unit, label, _curves(reports, throughput, _quantile(field, scale), _PARTS))
        for title, field, label, scale in (
            ("Time to first token", "ttft_s", "TTFT, ms", 1e3),
            ("Time per output token", "tpot_s", "TPOT, ms", 1e3),
            ("End-to-end latency", "latency_s", "latency, s", 1.0),
        )
    ]


def _cost(reports: Sequence[_Named]) -> list[str]:
    def cost(point: Point, part: str) -> float | None:
        return point.cost_per_million_output

    label = "$ per million output tokens"
    return [
        chart(title, axis, label, _curves(reports, _quantile(field, 1e3), cost, _PARTS[:2]))
        for title, field, axis in (
            ("Cost by time per output token", "tpot_s", "TPOT, ms"),
            ("Cost by time to first token", "ttft_s", "TTFT, ms"),
        )
    ]


def _distributions(reports: Sequence[_Named]) -> list[str]:
    def lines(metric: str) -> list[Line]:
        return [
            Line(
                _prefix(reports, name) + point.name,
                [1e3 * value for value in point.cdfs[metric]],
                list(range(101)),
                color,
                dashed=number > 0,
            )
            for number, (name, report) in enumerate(reports)
            for color, point in enumerate(report.points)
            if metric in point.cdfs
        ]

    return [chart(title, "ms", "% of requests", lines(metric)) for metric, title in _CDFS]


def _timelines(reports: Sequence[_Named]) -> list[str]:
    charts = []
    for name, report in reports:
        for point in report.points:
            line = point.timeline
            width = line.slice_s
            middles = list(accumulate([width / 2, *[width] * (len(line.running) - 1)]))
            title = _prefix(reports, name) + point.name
            running = Line("running", middles, line.running, 0)
            rate = Line("output tokens/s", middles, line.output_tokens_per_s, 2)
            ttft = [None if y is None else 1e3 * y for y in line.ttft_s]
            first = Line("TTFT", middles, ttft, 1, dots=True)
            charts.append(chart(f"{title}: requests in flight", "s", "requests", [running]))
            if any(line.output_tokens_per_s):
                charts.append(chart(f"{title}: output", "s", "tokens/s", [rate]))
                charts.append(chart(f"{title}: first tokens", "s", "TTFT, ms", [first]))
    return charts
