"""``galley serve``: the HTTP server with its engine."""

import click

from galley.cli.options import MODEL_HELP, Command, Flags, with_flags
from galley.config import Settings
from galley.service.spawn import spawn


@click.command(cls=Command)
@with_flags(Settings)
@click.argument("model", required=False, help=MODEL_HELP)
def serve(flags: Flags, model: str | None) -> None:
    """Serve a model through an OpenAI-compatible HTTP API."""
    settings = flags.settings(model=model)
    # The engine's process imports what it needs while this one imports the server.
    spawned = spawn()
    from galley.server.run import serve as run_server

    raise click.exceptions.Exit(run_server(settings, [spawned]))
