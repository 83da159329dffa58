"""``galley serve``: the HTTP server with its engines."""

import click

from galley.cli.options import Command, Flags, with_flags
from galley.config import Settings
from galley.service.spawn import Spawner


@click.command(cls=Command)
@with_flags(Settings)
@click.argument(
    "models",
    nargs=-1,
    metavar="[MODEL | NAME=MODEL...]",
    help="folder, GGUF file, hub id (org/name), short name (llama3.2); default: galley-demo",
)
def serve(flags: Flags, models: tuple[str, ...]) -> None:
    """Serve a model, or several by name, through an OpenAI-compatible HTTP API.

    Several: galley serve chat=org/name speech=galley-demo-speech. The names are those of the API.
    Options apply to all models; NAME.SETTING=VALUE after NAME=MODEL, such as chat.quantize=int4, or
    galley.yaml's models section sets an option of one model.
    """
    settings = flags.settings_of(models)
    # The engine processes start now, so that they import their modules while this one imports the server.
    spawner = Spawner(settings, ahead=True)
    from galley.server.run import serve as run_server

    raise click.exceptions.Exit(run_server(settings, spawner))
