"""A comparison as one self-contained HTML file: no scripts, no network."""

from collections.abc import Sequence
from html import escape
from itertools import accumulate
from typing import Final

from galley.bench.serve.chart import Line, chart
from galley.bench.serve.html import FOCUSABLE, document, table
from galley.quality.compare import Comparison, Measured
from galley.quality.verdict import verdict

_WORST: Final = 20
"""Tokens in the table of the greatest losses."""

_CURVE: Final = 200
"""Tokens on the curve of the loss over the vocabulary."""


def rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return the table that the terminal and the page show: a header, then a row for each figure."""
    base, measured = comparison.base, comparison.measured
    one = measured[0].loss

    table = [
        ("", f"base: {base.label}", *(m.side.label for m in measured)),
        (
            "perplexity",
            f"{one.base_perplexity:.4g}",
            *(f"{m.loss.perplexity:.4g}" for m in measured),
        ),
        ("mean KL, nats", "", *(f"{m.loss.kl:.2g}" for m in measured)),
        ("99 % KL, nats", "", *(f"{m.loss.kl_p99:.2g}" for m in measured)),
        ("same likeliest token", "", *(f"{m.loss.top1:.2%}" for m in measured)),
        (
            "greedy tokens in common",
            f"{measured[0].greedy_length:.1f}",
            *(f"{m.greedy_tokens:.1f}" for m in measured),
        ),
    ]
    sides = [base, *(m.side for m in measured)]
    if base.questions:
        table.append(("right answers", *(f"{s.right} of {s.questions}" for s in sides)))
    table.append(("weights, MB", *(f"{s.weight_bytes / 1e6:.4g}" for s in sides)))
    table.append(("prefill, tokens/s", *(f"{s.prefill_tokens_per_s:.3g}" for s in sides)))
    table.append(("decode, tokens/s", *(f"{s.decode_tokens_per_s:.3g}" for s in sides)))
    return table


def page(comparison: Comparison) -> str:
    """Render the table, loss against bytes, its distribution over positions, and the worst tokens."""
    base, measured = comparison.base, comparison.measured
    first = measured[0]
    title = f"galley eval quality: {first.side.name} compared with {base.name}"
    header, *body = rows(comparison)
    verdicts = "".join(f"<p>{escape(verdict(one))}</p>" for one in measured)
    charts = "".join(
        [
            _against_bytes(comparison),
            _distribution(comparison),
            _vocabulary(comparison),
            _sensitivity(comparison),
        ]
    )
    return document(
        title,
        f"<p>{first.loss.tokens} tokens in {comparison.windows} windows: {escape(comparison.source)}.</p>"
        f'{verdicts}{table(header, body)}<h2>Curves</h2><div class="charts">{charts}</div>'
        f"<h2>Tokens with the greatest loss in {escape(first.side.label)}</h2>{_worst(comparison)}",
    )


def _against_bytes(comparison: Comparison) -> str:
    """Draw loss against bytes; the base is the point without loss."""
    points = sorted(
        [
            (comparison.base.weight_bytes, 0.0, f"base: {comparison.base.label}"),
            *((m.side.weight_bytes, m.loss.kl, m.side.label) for m in comparison.measured),
        ]
    )
    line = Line(
        "mean KL",
        [size / 1e6 for size, _, _ in points],
        [kl for _, kl, _ in points],
        dots=True,
        labels=[name for _, _, name in points],
    )
    return chart("Loss against bytes", "weights, MB", "mean KL, nats", [line])


def _distribution(comparison: Comparison) -> str:
    lines = [
        Line(m.side.label, m.quantiles[:100], list(range(100)), color)
        for color, m in enumerate(comparison.measured)
    ]
    return chart("Divergence by position", "KL, nats, at most", "% of positions", lines)


def _vocabulary(comparison: Comparison) -> str:
    """Draw the share of the loss against the number of tokens."""
    lines = []
    for color, measured in enumerate(comparison.measured):
        shares = _shares(measured)
        if shares:
            lines.append(Line(measured.side.label, list(range(len(shares))), shares, color))
    return chart("Loss over the vocabulary", "tokens, by decreasing loss", "% of all loss", lines)


def _sensitivity(comparison: Comparison) -> str:
    """Draw the model's loss when one part of it alone is quantized, part by part."""
    lines = []
    for color, bits in enumerate((4, 8)):
        losses = [
            next((c.kl for c in part.choices if c.scheme and c.scheme.bits == bits), None)
            for part in comparison.parts
        ]
        names = [part.names[0].removesuffix(".weight") for part in comparison.parts]
        places = list(range(len(names)))
        lines.append(Line(f"int{bits}", places, losses, color, dots=True, labels=names))
    return chart("Sensitivity of parts", "part, from the first layer", "mean KL, nats", lines)


def _shares(measured: Measured) -> list[float]:
    """Return the percentage of the loss in the first 0, 1, 2, ... of the tokens with the greatest loss."""
    losses = [one.kl * one.positions for one in measured.tokens]
    total = sum(losses)
    parts = accumulate(losses[:_CURVE], initial=0.0)
    return [100 * part / total for part in parts] if total else []


def _worst(comparison: Comparison) -> str:
    first = comparison.measured[0]
    total = sum(one.kl * one.positions for one in first.tokens) or 1.0
    rows: Sequence[str] = [
        f"<tr><td><code>{escape(comparison.spelled[one.token])}</code></td><td>{one.positions}</td>"
        f"<td>{one.kl:.2g}</td><td>{one.top1:.1%}</td>"
        f"<td>{one.kl * one.positions / total:.1%}</td></tr>"
        for one in first.tokens[:_WORST]
    ]
    return (
        "<p>Positions grouped by the base's likeliest token.</p>"
        f'<div class="scroll" {FOCUSABLE}>'
        "<table><thead><tr><th>token</th><th>positions</th><th>mean KL, nats</th>"
        "<th>same likeliest token</th><th>share of the loss</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
