"""The entry point: commands are registered here, and errors become one line and an exit code."""

import logging
import sys
from typing import Annotated

import typer

from galley import __version__
from galley.cli.batch import batch
from galley.cli.bench import bench_app
from galley.cli.cache import cache_app
from galley.cli.eval import eval_app
from galley.cli.graph import graph
from galley.cli.options import EPILOG
from galley.cli.run import run
from galley.cli.serve import serve
from galley.errors import GalleyError, SettingsError

app = typer.Typer(
    name="galley",
    help="Serve language models as cheaply as a given quality and latency allow.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (serve, run, batch, graph):
    app.command(epilog=EPILOG)(command)
app.add_typer(eval_app, name="eval")
app.add_typer(bench_app, name="bench")
app.add_typer(cache_app, name="cache")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"galley {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 130 Ctrl-C."""
    try:
        app()
    except GalleyError as error:
        # Only --log-level debug enables this; a user's mistake needs no traceback.
        logging.getLogger("galley").debug("the command failed", exc_info=error)
        print(f"galley: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2 if isinstance(error, SettingsError) else 1)
