"""Bar charts as SVG without scripts, for quantities by name; colors are those of line charts."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from galley.bench.serve.chart import COLORS, ticks

_WIDTH: Final = 460
_LEAST_NAMES, _MOST_NAMES, _RIGHT, _TOP, _BOTTOM = 130, 250, 46, 6, 40
_LETTER: Final = 6.2
"""Width of a letter of the names, about."""

_BAR: Final = 13
_GAP: Final = 9


@dataclass(frozen=True, slots=True)
class Series:
    """One bar for each name of a chart; ``values`` has None where there is no bar."""

    name: str
    values: Sequence[float | None]


def bars(title: str, unit: str, names: Sequence[str], series: Sequence[Series]) -> str:
    """Return a figure of horizontal bars, grouped by name, with its legend; empty if there is no bar."""
    drawn = [value for one in series for value in one.values if value is not None]
    if not drawn:
        return ""
    marks = ticks(max(drawn))
    left = min(max(_LEAST_NAMES, _LETTER * max(map(len, names)) + 6), _MOST_NAMES)
    scale = (_WIDTH - left - _RIGHT) / marks[-1]
    group = _BAR * len(series) + _GAP
    height = _TOP + group * len(names) + _BOTTOM
    parts = [
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {_WIDTH} {height}" '
        f'role="img" aria-label="{escape(f"{title}: {unit} by name")}">'
    ]
    for mark in marks:
        x = left + mark * scale
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{height - _BOTTOM}"/>')
        parts.append(_text(x, height - _BOTTOM + 15, f"{mark:g}", "middle"))
    parts.append(_text((left + _WIDTH - _RIGHT) / 2, height - 8, unit, "middle"))
    for row, name in enumerate(names):
        top = _TOP + row * group + _GAP / 2
        parts.append(_text(left - 6, top + (group - _GAP) / 2 + 4, name, "end"))
        for number, one in enumerate(series):
            value = one.values[row]
            if value is not None:
                said = f"{one.name}: {name}: {value:.4g}"
                width = max(0.5, value * scale)
                parts.append(_bar(said, number, left, top + number * _BAR, width))
                parts.append(
                    _text(left + width + 4, top + number * _BAR + _BAR - 4, f"{value:.3g}", "start")
                )
    legend = "".join(
        f'<li><svg class="key" viewBox="0 0 24 8" aria-hidden="true"><g class="line c{n % COLORS}">'
        f'<path d="M0 4H24"/></g></svg>{escape(one.name)}</li>'
        for n, one in enumerate(series)
    )
    return "".join(parts) + f"</svg><ul>{legend}</ul></figure>"


def _bar(said: str, number: int, left: float, top: float, width: float) -> str:
    return (
        f'<g class="bar c{number % COLORS}"><rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{_BAR - 2}"><title>{escape(said)}</title></rect></g>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
