"""Draw a program as an SVG: a box for each op, top to bottom, and a line for each buffer that is read."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from html import escape
from typing import Final, NamedTuple

from galley.graph.program import Op, Program

_BOX: Final = (250, 40)
_GAP: Final = (24, 26)


class Box(NamedTuple):
    """The place of an op in the picture: its upper left corner."""

    op: Op
    x: int
    y: int


def draw_svg(program: Program) -> str:
    """Draw one row of boxes for each step of the longest path from the tokens to the logits.

    Views have no boxes: lines lead from the buffer itself to the ops that read a part of it.
    """
    sources = _sources(program)
    boxes = _placed(program, sources)
    width = max(box.x for box in boxes.values()) + _BOX[0] + 2 * _GAP[0]
    height = max(box.y for box in boxes.values()) + _BOX[1] + _GAP[1]
    lines = [
        _line(boxes[source], boxes[op.outputs[0]])
        for op in _drawn(program)
        for source in dict.fromkeys(sources[b] for b in op.inputs)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *lines,
            *(_box(box) for box in boxes.values()),
            "</svg>",
        ]
    )


def _drawn(program: Program) -> Iterable[Op]:
    return (op for op in program.ops if not op.signature.view)


def _sources(program: Program) -> dict[int, int]:
    """Return a mapping from each buffer to the first output of the op that computes it, through views."""
    sources: dict[int, int] = {}
    for op in program.ops:
        source = sources[op.inputs[0]] if op.signature.view else op.outputs[0]
        sources.update(dict.fromkeys(op.outputs, source))
    return sources


def _placed(program: Program, sources: Mapping[int, int]) -> dict[int, Box]:
    """Return a mapping from an op's first output to its box, below the ops that it reads."""
    levels: dict[int, int] = {}
    rows: dict[int, list[Op]] = defaultdict(list)
    for op in _drawn(program):
        level = max((levels[sources[b]] + 1 for b in op.inputs), default=0)
        levels[op.outputs[0]] = level
        rows[level].append(op)
    widest = max(len(row) for row in rows.values())
    step_x, step_y = _BOX[0] + _GAP[0], _BOX[1] + _GAP[1]
    return {
        op.outputs[0]: Box(
            op,
            2 * _GAP[0] + (widest - len(row)) * step_x // 2 + i * step_x,
            _GAP[1] + level * step_y,
        )
        for level, row in rows.items()
        for i, op in enumerate(row)
    }


def _box(box: Box) -> str:
    color = box.op.signature.color
    center = box.x + _BOX[0] // 2
    return (
        f'<g><title>{escape(_details(box.op))}</title><rect x="{box.x}" y="{box.y}" '
        f'width="{_BOX[0]}" height="{_BOX[1]}" rx="6" fill="{color}" stroke="#888888"/>'
        f'<text x="{center}" y="{box.y + 17}" text-anchor="middle" font-weight="bold">'
        f"{escape(box.op.name)} &#8594; {' + '.join(map(str, box.op.widths))}</text>"
        f'<text x="{center}" y="{box.y + 32}" text-anchor="middle" fill="#555555">'
        f"{escape(_short_weights(box.op))}</text></g>"
    )


def _line(above: Box, below: Box) -> str:
    """Draw a straight line down to the next row, or a curve around boxes to a row further below."""
    x1, y1 = above.x + _BOX[0] // 2, above.y + _BOX[1]
    x2, y2 = below.x + _BOX[0] // 2, below.y
    near = y2 - y1 <= _GAP[1]
    bend = 0 if near else -4 * (_BOX[0] // 2 + _GAP[0]) // 3
    return (
        f'<path d="M{x1} {y1} C{x1 + bend} {y1 + 20} {x2 + bend} {y2 - 20} {x2} {y2}" '
        f'fill="none" stroke="#666666"/>'
    )


def _short_weights(op: Op) -> str:
    """Shorten ``model.layers.3.self_attn.q_proj.weight`` and others to ``layer 3: q_proj, k_proj``."""
    if op.signature.routed:
        layer = next((part for part in op.weights["gate"][0].split(".") if part.isdigit()), "")
        return f"layer {layer}: {op.attrs['per_token']} of {len(op.weights['gate'])}"
    names = op.weights.get("weight", ())[: 1 if op.signature.apart else None]
    parts = [name.removesuffix(".weight").split(".") for name in names]
    layer = next((part for part in parts[0] if part.isdigit()), "") if parts else ""
    text = ", ".join(part[-1] for part in parts)
    return f"layer {layer}: {text}" if layer else text


def _details(op: Op) -> str:
    """Return the text of the tooltip."""
    weights = []
    for role, names in op.weights.items():
        if op.signature.apart:
            others = "experts" if op.signature.routed else "heads"
            weights.append(f"{role}: {names[0]}, and of {len(names) - 1} more {others}")
        else:
            weights += [f"{role}: {name}" for name in names]
    attrs = [f"{name}: {value}" for name, value in op.attrs.items() if name != "inv_freq"]
    return "\n".join([op.name, *weights, *attrs])
