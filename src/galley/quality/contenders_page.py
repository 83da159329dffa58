"""A comparison of engines as a table, a sentence and one self-contained HTML file without scripts."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from galley.bench.serve.chart import Line, chart
from galley.bench.serve.html import document, facts, table
from galley.bench.serve.results import Point, Quantiles
from galley.quality.contenders import Comparison, Contender

_CLOSE: Final = 1.05
"""Ratio of throughputs below which two engines count as equally fast."""

_LOST: Final = 0.02
"""An engine whose share of equal tokens is lower than the best by more than this is not recommended."""

_WORSE: Final = 0.01
"""Nor is one whose word error rate is above the best by more than this."""

_AT_LOAD: Final = ("TTFT", "TPOT", "tokens/s")
_LOSSES: Final = ("same token", "KL, nats")
_SPEECH_AT_LOAD: Final = ("latency", "audio s/s")

_CHARTS: Final = (
    ("Throughput", "tokens/s", "output_tokens_per_s"),
    ("Time to first token, P50", "ms", "ttft_s"),
    ("Time per output token, P50", "ms", "tpot_s"),
)
_SPEECH_CHARTS: Final = (
    ("Throughput", "seconds of audio/s", "audio_seconds_per_s"),
    ("Latency, P50", "ms", "latency_s"),
)
"""Title, unit, and field of a point."""


def rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return the table: a header, then a row for each contender; one that failed has no figures."""
    at_load, lost = (_AT_LOAD, _LOSSES) if not comparison.speech else (_SPEECH_AT_LOAD, ("WER",))
    loads = [point.load for point in _points(comparison)]
    header = ["engine", "start", "memory"]
    header += [f"{figure} at {load:g}" for load in loads for figure in at_load]
    header += lost
    return [
        tuple(header),
        *(_row(one, len(header), speech=comparison.speech) for one in comparison.contenders),
    ]


def _row(one: Contender, length: int, *, speech: bool) -> tuple[str, ...]:
    if one.error:
        return (_name(one), *["-"] * (length - 1))
    assert one.start_s is not None
    cells = [_name(one), f"{one.start_s:.1f} s"]
    cells.append("-" if one.memory_bytes is None else f"{one.memory_bytes / 2**20:.0f} MiB")
    if speech:
        for point in one.points:
            cells += [_ms(point.latency_s), f"{point.audio_seconds_per_s or 0:.1f}"]
        cells.append("-" if one.wer is None else f"{one.wer:.1%}")
        return tuple(cells)
    for point in one.points:
        cells += [_ms(point.ttft_s), _ms(point.tpot_s), f"{point.output_tokens_per_s:.1f}"]
    loss = one.loss
    cells.append("-" if loss is None else f"{loss.top1:.1%}")
    cells.append("-" if loss is None or loss.kl is None else f"{loss.kl:.2g}")
    return tuple(cells)


def _ms(quantiles: Quantiles | None) -> str:
    return "-" if quantiles is None else f"{1e3 * quantiles.p50:.4g} ms"


def _name(one: Contender) -> str:
    """Return the engine, and its model if that is not the one that is compared."""
    return f"{one.engine}={Path(one.model).name}" if one.own_model else one.engine


def _points(comparison: Comparison) -> Sequence[Point]:
    return next((one.points for one in comparison.contenders if one.points), ())


def notes(comparison: Comparison) -> list[str]:
    """Return what the table does not say: reasons of failures, parameters that are not honored."""
    said = [f"{_name(one)} failed: {one.error}" for one in comparison.contenders if one.error]
    said += [
        f"{_name(one)} does not support {', '.join(one.unsupported)}"
        for one in comparison.contenders
        if one.unsupported
    ]
    if comparison.reference_error:
        said.append(
            f"the loss was not measured, because Galley's own engine cannot run the model in float32: "
            f"{comparison.reference_error}"
        )
    for one in comparison.contenders:
        for point in one.points:
            if point.errors:
                failed = ", ".join(f"{count} x {kind}" for kind, count in point.errors.items())
                said.append(f"{_name(one)}, {point.name}: {failed}")
    return said


def advice(comparison: Comparison) -> str:
    """Return the sentence that says which engine to take, and why."""
    running = [one for one in comparison.contenders if one.points]
    if not running:
        return "None of the engines can be taken: each of them failed."
    reliable = [one for one in running if not any(p.errors for p in one.points)] or running
    exact = _exact(reliable)
    fastest, *others = sorted(exact, key=_throughput, reverse=True)
    load = fastest.points[-1].load
    does = (
        "transcribes {} seconds of audio per second"
        if comparison.speech
        else "generates {} tokens/s"
    )
    said = f"Take {_name(fastest)}: with {load:g} request{'s' * (load != 1)} at a time it "
    said += does.format(_rounded(_throughput(fastest), 3))
    if others:
        second = others[0]
        ratio = _throughput(fastest) / max(_throughput(second), 1e-9)
        compared = f"{_name(second)} ({_rounded(_throughput(second), 3)})"
        if ratio < _CLOSE:
            said += f", as many as {compared} within {_CLOSE - 1:.0%}"
        else:
            said += f", {_rounded(ratio, 2)} times as many as {compared}"
    if fastest.loss is not None:
        said += (
            f", and its likeliest token is that of float32 at {fastest.loss.top1:.1%} of positions"
        )
    if fastest.wer is not None:
        said += f", and its word error rate is {fastest.wer:.1%}"
    left = [_name(one) for one in reliable if one not in exact]
    if left:
        lost = "made too many word errors" if comparison.speech else "lost too many of these tokens"
        said += f". {' and '.join(left)} {lost} to be considered"
    failed = [_name(one) for one in running if one not in reliable]
    if failed:
        said += f". {' and '.join(failed)} did not answer all requests"
    return said + "."


def _exact(running: Sequence[Contender]) -> list[Contender]:
    """Return the engines whose loss is close to the least."""
    best_top1 = max((one.loss.top1 for one in running if one.loss), default=0.0)
    best_wer = min((one.wer for one in running if one.wer is not None), default=0.0)
    return [
        one
        for one in running
        if (one.loss is None or one.loss.top1 >= best_top1 - _LOST)
        and (one.wer is None or one.wer <= best_wer + _WORSE)
    ]


def _rounded(value: float, digits: int) -> str:
    """Return a value with this many significant digits, without an exponent."""
    return f"{float(f'{value:.{digits}g}'):,.15g}"


def _throughput(one: Contender) -> float:
    """Return the seconds of audio per second, or the tokens per second, of the highest load."""
    point = one.points[-1]
    audio = point.audio_seconds_per_s
    return point.output_tokens_per_s if audio is None else audio


def page(comparison: Comparison) -> str:
    """Render the sentence, the table, the charts and the notes."""
    header, *body = rows(comparison)
    known = {
        "measured": f"{comparison.started}, galley {comparison.galley} on {comparison.machine}",
        **{f"{_name(one)} serves": one.model for one in comparison.contenders},
        **comparison.workload,
    }
    if comparison.reference:
        known["float32"] = comparison.reference
    said = "".join(f"<li>{escape(note)}</li>" for note in notes(comparison))
    return document(
        f"galley compare: {comparison.model}",
        f"<p>{escape(advice(comparison))}</p>{table(header, body)}<ul>{said}</ul>"
        f'<div class="charts">{_charts(comparison)}</div>{facts(known)}',
    )


def _charts(comparison: Comparison) -> str:
    def lines(figure: str) -> list[Line]:
        running = [one for one in comparison.contenders if one.points]
        return [
            Line(
                _name(one),
                [point.load for point in one.points],
                [_figure(point, figure) for point in one.points],
                color=number,
                dots=True,
            )
            for number, one in enumerate(running)
        ]

    charts = _SPEECH_CHARTS if comparison.speech else _CHARTS
    return "".join(
        chart(title, "requests at a time", label, lines(figure)) for title, label, figure in charts
    )


def _figure(point: Point, name: str) -> float | None:
    value = getattr(point, name)
    if isinstance(value, Quantiles):
        return 1e3 * value.p50
    return None if value is None else float(value)
