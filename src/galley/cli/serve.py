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
    help="folder, hub id (org/name) or bundled model; default: galley-demo",
)
def serve(flags: Flags, models: tuple[str, ...]) -> None:
    """Serve a model, or several by name, through an OpenAI-compatible HTTP API.

    Several: galley serve chat=org/name speech=galley-demo-speech. Each name is the model's in the API.
    The options hold for all of them; what is said as chat.quantize=int4 behind chat=..., or in
    galley.yaml under models, holds for one.
    """
    settings = flags.settings_of(models)
    # The engines' processes import what they need while this one imports the server.
    spawner = Spawner(settings, ahead=True)
    from galley.server.run import serve as run_server

    raise click.exceptions.Exit(run_server(settings, spawner))
