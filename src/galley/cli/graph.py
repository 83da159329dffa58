"""``galley graph``: a model's program before and after each graph pass, and what each pass gains."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from galley.cli.options import MODEL_HELP, Command, Flags, with_flags
from galley.cli.report import check_folders, write_text
from galley.cli.terminal import progress, table

if TYPE_CHECKING:
    from galley.engine.stages import Stage


@click.command(cls=Command)
@with_flags(
    ("revision", "dtype", "weight_dtype", "activations", "kv_dtype", "threads", "disable_pass")
)
@click.argument("model", required=False, help=MODEL_HELP)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="timed steps per row; the median is shown",
)
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="write the table and the picture to FILE",
)
@click.option(
    "--svg", metavar="FILE", type=click.Path(path_type=Path), help="write the picture to FILE"
)
def graph(
    flags: Flags, model: str | None, repeats: int, html: Path | None, svg: Path | None
) -> None:
    """Show the gain of each graph pass.

    Each row describes the program after a pass: its ops, the bytes of weights read and of buffers read and
    written for one token, the memory that the buffers share, and the time of a decoding step with one row
    (for embedding models and rerankers, of a text of 64 tokens). The picture shows the program as the
    native executor runs it; for a speech model, its decoder.
    """
    settings = flags.settings(model=model)
    check_folders(html=html, svg=svg)
    from galley.engine.read_model import read_model
    from galley.formats.source import resolve_model
    from galley.ops.choice import executor_factory

    # Raises an error that names the missing part, before the imports below fail.
    executor_factory("cpu")
    from galley.engine.stages import measure_eager, measure_stages, stage_names
    from galley.graph.picture import draw_svg

    read = read_model(settings, resolve_model(settings.model, revision=settings.revision))
    with progress("measuring", 1 + len(stage_names(read))) as bar:
        stages = []
        for stage in measure_stages(read, repeats=repeats):
            stages.append(stage)
            bar.update(1)
        eager = measure_eager(read, repeats=repeats)
        bar.update(1)
    rows = _rows(stages, eager, len(read.program.ops))
    print(table(HEADER, rows))
    picture = draw_svg(stages[-1].program)
    write_text(svg, picture)
    write_text(html, _page(rows, picture, title=settings.model))


HEADER: Final = ("after pass", "ops", "weights MB", "buffers kB", "arena kB", "step ms", "faster")
Row: TypeAlias = tuple[str, ...]


def _rows(stages: "Sequence[Stage]", eager: float | None, ops: int) -> list[Row]:
    """Return the table as text.

    Args:
        stages: the program before and after each pass.
        eager: seconds of a step on the reference executor, or None.
        ops: ops of that step.
    """
    first = stages[0].seconds if eager is None else eager
    rows: list[Row] = []
    if eager is not None:
        rows.append(("(reference)", str(ops), "", "", "", f"{1e3 * eager:.3f}", "1.00x"))
    for stage in stages:
        figures = (
            str(stage.cost.steps),
            f"{stage.cost.weight_bytes / 1e6:.2f}",
            f"{stage.cost.activation_bytes / 1e3:.1f}",
            f"{stage.cost.arena_bytes / 1e3:.1f}",
            f"{1e3 * stage.seconds:.3f}",
            f"{first / stage.seconds:,.2f}x",
        )
        rows.append((stage.name or "(as traced)", *figures))
    return rows


def _page(rows: Sequence[Row], picture: str, *, title: str) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return "\n".join(
        [
            "<!DOCTYPE html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            "<style>body { font-family: sans-serif } td, th { padding: 0.2em 0.8em; "
            "text-align: right } td:first-child { text-align: left }</style></head><body>",
            f"<h1>{escape(title or 'the bundled model')}</h1><table>",
            line(HEADER, "th"),
            *(line(row, "td") for row in rows),
            f"</table>\n{picture}\n</body></html>\n",
        ]
    )
