"""Line charts as SVG without scripts; colors are CSS classes of the page, for light and dark themes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH, _HEIGHT = 460, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 46
COLORS: Final = 8


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart.

    Attributes:
        name: shown in the legend and next to the pointer.
        xs, ys: points; where y is None the line is interrupted.
        color: an index into the palette of :data:`COLORS`.
        dashed: draw a dashed line, to distinguish it from another of the same color.
        dots: mark every point.
        labels: text shown next to the pointer, for each point.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    color: int = 0
    dashed: bool = False
    dots: bool = False
    labels: Sequence[str] = ()


def chart(title: str, x_label: str, y_label: str, lines: Sequence[Line]) -> str:
    """Return a figure with its legend; empty if no line has a point."""
    drawn = [
        (x, y) for line in lines for x, y in zip(line.xs, line.ys, strict=True) if y is not None
    ]
    if not drawn:
        return ""
    x_ticks = ticks(max(x for x, _ in drawn))
    y_ticks = ticks(max(y for _, y in drawn))
    parts = [
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img" aria-label="{escape(f"{title}: {y_label} by {x_label}")}">'
    ]
    place = _Place(x_ticks[-1], y_ticks[-1])
    for tick in x_ticks:
        x = place.x(tick)
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        parts.append(_text(x, _HEIGHT - _BOTTOM + 16, f"{tick:g}", "middle"))
    for tick in y_ticks:
        y = place.y(tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{tick:g}", "end"))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, x_label, "middle"))
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    turned = f' transform="rotate(-90 14 {middle:.0f})"'
    parts.append(_text(14, middle, y_label, "middle", turned))
    parts += [_line(line, place) for line in lines]
    return "".join(parts) + f"</svg>{_legend(lines)}</figure>"


def ticks(most: float) -> list[float]:
    """Return round numbers from 0 to ``most`` or a little more, by 1, 2 or 5 times a power of ten."""
    if most <= 0:
        return [0.0, 1.0]
    step = 10.0 ** math.floor(math.log10(most / 5))
    step *= next(factor for factor in (1, 2, 5, 10) if most / (step * factor) <= 7)
    count = math.ceil(most / step - 1e-9)
    digits = max(0, -math.floor(math.log10(step)))
    return [round(step * i, digits) for i in range(count + 1)]


class _Place:
    """The mapping from values to points of the picture."""

    def __init__(self, most_x: float, most_y: float) -> None:
        self._x_scale = (_WIDTH - _LEFT - _RIGHT) / most_x
        self._y_scale = (_HEIGHT - _TOP - _BOTTOM) / most_y

    def x(self, value: float) -> float:
        return _LEFT + value * self._x_scale

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value * self._y_scale


def _line(line: Line, place: _Place) -> str:
    path, pen, dots = [], "M", []
    labels = [*line.labels, *[""] * (len(line.xs) - len(line.labels))]
    for x, y, label in zip(line.xs, line.ys, labels, strict=True):
        if y is None:
            pen = "M"
            continue
        at = f"{place.x(x):.1f} {place.y(y):.1f}"
        path.append(pen + at)
        pen = "L"
        if line.dots:
            cx, cy = at.split()
            said = escape(": ".join(filter(None, (line.name, label, f"{x:.4g}, {y:.4g}"))))
            dots.append(f'<circle cx="{cx}" cy="{cy}" r="3.5"><title>{said}</title></circle>')
    kind = f"line c{line.color % COLORS}" + (" dashed" if line.dashed else "")
    title = f"<title>{escape(line.name)}</title>"
    return f'<g class="{kind}"><path d="{"".join(path)}">{title}</path>{"".join(dots)}</g>'


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _legend(lines: Sequence[Line]) -> str:
    def item(line: Line) -> str:
        kind = f"c{line.color % COLORS}" + (" dashed" if line.dashed else "")
        return (
            f'<li><svg class="key" viewBox="0 0 24 8" aria-hidden="true"><g class="line {kind}">'
            f'<path d="M0 4H24"/></g></svg>{escape(line.name)}</li>'
        )

    return f"<ul>{''.join(map(item, lines))}</ul>"
