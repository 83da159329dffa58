"""Figures as text, of one run or of two side by side."""

from collections.abc import Iterator, Sequence

from galley.bench.serve.fidelity import Fidelity
from galley.bench.serve.results import Point, Quantiles, Report
from galley.errors import SettingsError


def figures(point: Point) -> dict[str, str]:
    """Return the figures of a run for people: name with unit -> text."""
    rows = {
        "requests": f"{point.completed} of {point.requests}",
        "errors": ", ".join(f"{n} x {kind}" for kind, n in point.errors.items()) or "none",
        "requests/s": f"{point.requests_per_s:.2f}",
        "output tokens/s": f"{point.output_tokens_per_s:.1f}",
        "all tokens/s": f"{point.total_tokens_per_s:.1f}",
        "tokens per prompt": f"{point.prompt_tokens:.0f}",
        "tokens per answer": f"{point.output_tokens:.0f}" + ("" if point.counted else " (pieces)"),
        "prompt tokens cached": f"{point.cached_share:.0%}",
    }
    for label, quantiles in (
        ("TTFT", point.ttft_s),
        ("TPOT", point.tpot_s),
        ("inter-token", point.inter_token_s),
        ("latency", point.latency_s),
        ("sent late", point.lag_s),
        ("client's loop late", point.loop_delay_s),
    ):
        rows[f"{label}, ms: P50 P95 P99 max"] = _milliseconds(quantiles)
    if point.audio_seconds_per_s is not None:
        rows["audio seconds/s"] = f"{point.audio_seconds_per_s:.1f}"
    if point.goodput_per_s is not None and point.goodput_share is not None:
        rows["goodput, requests/s"] = f"{point.goodput_per_s:.2f} ({point.goodput_share:.0%})"
    if point.cost_per_million is not None and point.cost_per_million_output is not None:
        rows["$ per million output tokens"] = f"{point.cost_per_million_output:.4g}"
        rows["$ per million tokens"] = f"{point.cost_per_million:.4g}"
    return rows


def fidelity_text(found: Fidelity) -> str:
    """Return what a comparison on recorded texts found, in a sentence."""
    first, second = found.perplexities
    return (
        f"same likeliest token at {found.top1:.2%} of {found.tokens} tokens of {found.texts} recorded "
        f"answers, mean KL at least {found.kl:.2g} nats, perplexity {first:.4g} -> {second:.4g}"
    )


def comparison_rows(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """Return rows of a figure's name and its text for each run."""
    columns = [figures(point) for point in points]
    names = dict.fromkeys(name for column in columns for name in column)
    return [(name, *(column.get(name, "-") for column in columns)) for name in names]


def _milliseconds(quantiles: Quantiles | None) -> str:
    if quantiles is None:
        return "-"
    shown = (quantiles.shown(part) for part in ("p50", "p95", "p99", "max"))
    return " ".join("-" if value is None else f"{1e3 * value:.4g}" for value in shown)


def compared(before: Report, after: Report) -> list[tuple[str, str, str, str, str]]:
    """Return rows of load, figure, both values and their ratio, for the loads that both reports have.

    Raises:
        SettingsError: the reports have no load in common.
    """
    others = {(point.kind, point.load): point for point in after.points}
    rows = [
        (first.name, name, f"{a:.4g}", f"{b:.4g}", f"{b / a:.3f}" if a else "-")
        for first in before.points
        if (second := others.get((first.kind, first.load))) is not None
        for (name, a), (_, b) in zip(_numbers(first), _numbers(second), strict=True)
        if a is not None and b is not None
    ]
    if not rows:
        raise SettingsError(
            f"the reports have no load in common: {_loads(before.points)} in one, "
            f"{_loads(after.points)} in the other"
        )
    return rows


def _loads(points: Sequence[Point]) -> str:
    return "; ".join(point.name for point in points)


def _numbers(point: Point) -> Iterator[tuple[str, float | None]]:
    yield "completed, share", point.completed / point.requests
    yield "requests/s", point.requests_per_s
    yield "output tokens/s", point.output_tokens_per_s
    for label, quantiles in (
        ("TTFT", point.ttft_s),
        ("TPOT", point.tpot_s),
        ("inter-token", point.inter_token_s),
        ("latency", point.latency_s),
    ):
        for part in ("p50", "p95", "p99"):
            value = None if quantiles is None else quantiles.shown(part)
            yield f"{label} {part.upper()}, ms", None if value is None else 1e3 * value
    yield "audio seconds/s", point.audio_seconds_per_s
    yield "goodput, requests/s", point.goodput_per_s
    yield "$ per million output tokens", point.cost_per_million_output
