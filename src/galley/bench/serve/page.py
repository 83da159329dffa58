"""The report of runs as one self-contained HTML file: no scripts, no network."""

from collections.abc import Callable, Sequence
from html import escape
from itertools import accumulate
from typing import Final, TypeAlias

from galley.bench.serve.chart import Line, chart
from galley.bench.serve.compare import comparison_rows
from galley.bench.serve.results import Point, Quantiles, Report

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2330; --paper: #fff; --soft: #5c6473; --grid: #e3e6eb;
  --c0: #2563c9; --c1: #c2410c; --c2: #15803d; --c3: #9333ea; --c4: #b91c5c; --c5: #0e7490; --c6: #a16207;
  --c7: #475569 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --paper: #14171d; --soft: #a3acba;
  --grid: #2c323d; --c0: #7aa7f7; --c1: #fb923c; --c2: #4ade80; --c3: #c79bfb; --c4: #f472b6; --c5: #22d3ee;
  --c6: #facc15; --c7: #cbd5e1 } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: min(1600px, 96vw); padding: 0
  1em; color: var(--ink); background: var(--paper) }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25em .7em; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap }
th:first-child, td:first-child { text-align: left }
.charts { display: grid; gap: 1.5em;
  grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)) }
figure { margin: 0 } figcaption { font-weight: 600 } figure > svg { width: 100%; height: auto }
figure ul { list-style: none; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: .2em 1.2em;
  font-size: .85em }
.key { width: 24px; height: 8px; margin-right: .4em; vertical-align: middle }
text { fill: var(--soft); font-size: 11px } .grid { stroke: var(--grid); fill: none }
.line path { stroke: currentColor; stroke-width: 2; fill: none } .line circle { fill: currentColor }
.dashed path { stroke-dasharray: 6 4 } dt { color: var(--soft); float: left; clear: left; width: 12em }
dd { margin-left: 12em } .bad { color: var(--c4) }
""" + "".join(f".c{i} {{ color: var(--c{i}) }} " for i in range(8))

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
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>{''.join(heads)}{''.join(charts)}</main></body></html>\n"
    )


def _section(title: str, charts: Sequence[str]) -> str:
    drawn = "".join(charts)
    return f'<h2>{escape(title)}</h2><div class="charts">{drawn}</div>' if drawn else ""


def _head(name: str, report: Report) -> str:
    facts = {
        "server": report.target,
        "model": report.model,
        "measured": f"{report.started}, galley {report.galley} on {report.client}",
        **report.workload,
    }
    if report.objective:
        limits = (f"{metric} at most {most:g} s" for metric, most in report.objective.items())
        facts["objective"] = ", ".join(limits)
    if report.price_per_hour is not None:
        facts["price"] = f"${report.price_per_hour:g} per hour"
    items = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
    rows = "".join(
        f"<tr><th scope=row>{escape(row)}</th>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for row, *cells in comparison_rows(report.points)
    )
    loads = "".join(f"<th scope=col>{escape(point.name)}</th>" for point in report.points)
    errors = "".join(
        f'<p class="bad">{escape(f"{p.name}: {n} x {kind}: {p.details[kind]}")}</p>'
        for p in report.points
        for kind, n in p.errors.items()
    )
    return (
        f"<h2>{escape(name)}</h2><dl>{items}</dl><div class=scroll><table><thead><tr><th>load</th>"
        f"{loads}</tr></thead><tbody>{rows}</tbody></table></div>{errors}"
    )


def _prefix(reports: Sequence[_Named], name: str) -> str:
    return f"{name}, " if len(reports) > 1 else ""


def _curves(
    reports: Sequence[_Named], x: _Axis, y: _Axis, parts: Sequence[tuple[str, str]]
) -> list[Line]:
    """Return a line for each report and quantile through its points, in the order of the runs."""
    lines = []
    for number, (name, report) in enumerate(reports):
        for colour, (part, label) in enumerate(parts):
            lines.append(
                Line(
                    _prefix(reports, name) + label,
                    [x(point, part) or 0.0 for point in report.points],
                    [None if x(p, part) is None else y(p, part) for p in report.points],
                    colour,
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
                colour,
                dashed=number > 0,
            )
            for number, (name, report) in enumerate(reports)
            for colour, point in enumerate(report.points)
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
