"""``galley serve``: the HTTP server with its engines."""

import dataclasses

import click

from galley.cli.options import Command, Flags, with_flags
from galley.cli.other_servers import translated
from galley.errors import SettingsError
from galley.formats.model_repository import read_repository
from galley.formats.models_folder import models_in
from galley.service.spawn import Spawner
from galley.settings.config import Settings
from galley.settings.named_models import NamedModel


class _ServeCommand(Command):
    """A command that also accepts flags of other servers with the same meaning."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See :class:`click.Command`."""
        known = frozenset(
            name for param in self.params for name in (*param.opts, *param.secondary_opts)
        )
        return super().parse_args(ctx, translated(args, known))


@click.command(
    cls=_ServeCommand,
    examples=(
        "galley serve",
        "galley serve org/name --weight-dtype int4 --max-running 32",
        "galley serve model.gguf --api-key-file keys.txt --host 0.0.0.0",
        "galley serve chat=org/name speech=openai/whisper-tiny.en chat.weight_dtype=int8",
    ),
)
@with_flags(Settings)
@click.argument(
    "models",
    nargs=-1,
    metavar="[MODEL | NAME=MODEL...]",
    help="folder, GGUF file, hub id (org/name), short name (llama3.2); default: galley-demo",
)
def serve(flags: Flags, models: tuple[str, ...]) -> None:
    """Serve a model, or several by name, through an OpenAI-compatible HTTP API.

    Several: galley serve chat=org/name speech=galley-demo-speech. Clients use these names.
    Options apply to all models; NAME.SETTING=VALUE after NAME=MODEL, such as chat.weight_dtype=int4, or
    galley.yaml's models section sets an option of one model.
    """

    def read() -> Settings:
        return _with_folders(flags.settings_of(models))

    settings = read()
    # Start the engine processes now, so that they import their modules while this one imports the server.
    spawner = Spawner(settings, ahead=True)
    from galley.server.run import serve as run_server

    raise click.exceptions.Exit(run_server(settings, spawner, read))


def _with_folders(settings: Settings) -> Settings:
    """Return settings that also name the models of ``models_dir`` and of ``model_repository``.

    Raises:
        SettingsError: a folder cannot be read or holds no model, or a model without a name is given, too.
        ModelError: a model of the repository, or its configuration, cannot be used.
    """
    for name in ("models_dir", "model_repository"):
        if getattr(settings, name) and settings.model:
            raise SettingsError(
                f"with {name}, model {settings.model} needs a name: galley serve NAME={settings.model}"
            )
    named = {model.name for model in settings.models}
    found: list[NamedModel] = []
    if settings.model_repository:
        for name, own in read_repository(settings.model_repository).items():
            if name in named:
                raise SettingsError(f"model_repository: there is another model {name}")
            found.append(NamedModel(name, own))
    named |= {model.name for model in found}
    if settings.models_dir:
        found += (
            NamedModel(name, {"model": str(path)}, on_request=True)
            for name, path in models_in(settings.models_dir).items()
            if name not in named
        )
        if not (found or named):
            raise SettingsError(
                f"models_dir: {settings.models_dir} contains no models (folders with a config.json, or "
                "GGUF files)"
            )
    if not found:
        return settings
    return dataclasses.replace(settings, models=(*settings.models, *found))
