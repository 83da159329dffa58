"""``galley serve``: the HTTP server with its engine."""

from typing import Annotated

import typer

from galley.cli.options import MODEL_HELP, Flags, with_flags
from galley.config import Settings
from galley.service.spawn import spawn


@with_flags(Settings)
def serve(
    flags: Flags,
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP)] = None,
) -> None:
    """Serve a model through an OpenAI-compatible HTTP API."""
    settings = flags.settings(model=model)
    # The engine's process imports what it needs while this one imports the server.
    spawned = spawn()
    from galley.server.run import serve as run_server

    raise typer.Exit(run_server(settings, spawned))
