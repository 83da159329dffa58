"""The frame of a report, one self-contained HTML file, and its tables: no scripts, no network."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

_STYLE: Final = """
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
figure { margin: 0; max-width: 640px } figcaption { font-weight: 600 }
figure > svg { width: 100%; height: auto }
figure ul { list-style: none; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: .2em 1.2em;
  font-size: .85em }
.key { width: 24px; height: 8px; margin-right: .4em; vertical-align: middle }
text { fill: var(--soft); font-size: 11px } .grid { stroke: var(--grid); fill: none }
.line path { stroke: currentColor; stroke-width: 2; fill: none } .line circle { fill: currentColor }
.dashed path { stroke-dasharray: 6 4 } dt { color: var(--soft); float: left; clear: left; width: 12em }
dd { margin-left: 12em } .bad { color: var(--c4) } .good { color: var(--c2) }
.bar rect { fill: currentColor }
""" + "".join(f".c{i} {{ color: var(--c{i}) }} " for i in range(8))


FOCUSABLE: Final = 'tabindex="0" role="group" aria-label="table"'
"""Attributes of a table's frame: what scrolls has to be reachable with the keyboard."""


def document(title: str, body: str) -> str:
    """Return a whole file: the title is its heading, ``body`` is HTML."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts; the first cell of a row is its heading."""
    heads = "".join(f"<th scope=col>{escape(cell)}</th>" for cell in header)
    body = "".join(
        f"<tr><th scope=row>{escape(name)}</th>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in rows
    )
    return (
        f'<div class="scroll" {FOCUSABLE}><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def facts(entries: Mapping[str, str]) -> str:
    """Return a list of names with what they stand for."""
    listed = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in entries.items())
    return f"<dl>{listed}</dl>"
