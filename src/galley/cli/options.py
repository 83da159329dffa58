"""Flags made from declarations that exist elsewhere: the settings and the sampling parameters.

A command asks for them with :func:`with_flags` and gets one :class:`Flags` object, which holds what
was really given on the command line and leaves the rest to the environment, the file, the default.
"""

import dataclasses
import functools
import inspect
import logging
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from galley.config import EngineSettings, Settings, setting_types
from galley.types import SamplingParams

EPILOG: Final = (
    "Each of the settings above can also be a line of galley.yaml (max_running: 32) or a variable "
    "(GALLEY_MAX_RUNNING=32). A flag wins over a variable, a variable over the file."
)

MODEL_HELP: Final = "folder or hub id (org/name); default: the bundled model"

SAMPLING_HELP: Final = {
    "temperature": "0 always takes the likeliest token; default: the model's own",
    "top_p": "keep the likeliest tokens up to this probability mass",
    "top_k": "keep this many of the likeliest tokens; 0 keeps all",
    "min_p": "keep tokens with at least this share of the best one's probability",
    "repetition_penalty": "above 1 discourages tokens seen in the prompt or the answer",
    "presence_penalty": "above 0 discourages tokens seen in the answer",
    "frequency_penalty": "above 0 discourages tokens the more often they were seen in the answer",
    "max_tokens": "longest answer in tokens; default: the rest of the context",
    "seed": "the same seed gives the same answer",
    "stop": "end the answer before this text; repeat for several",
}


@dataclass(frozen=True)
class Flags:
    """What the command line gave: settings and sampling parameters by name, and ``--config``."""

    given: Mapping[str, object]
    file: Path | None

    def settings(self, *, model: str | None = None) -> Settings:
        """All sources merged. ``model`` is the positional argument, if it was given.

        Raises:
            SettingsError: a value in any source is wrong.
        """
        names = setting_types(Settings).keys()
        flags = {name: value for name, value in self.given.items() if name in names}
        if model is not None:
            flags["model"] = model
        return Settings.load(flags, file=self.file)

    def sampling(self) -> SamplingParams:
        """Raises :class:`~galley.errors.RequestError` when a value is out of range."""
        chosen = {name: value for name, value in self.given.items() if name in SAMPLING_HELP}
        return SamplingParams(**chosen)  # type: ignore[arg-type]  # typer made them of these types


def start_logging(settings: Settings) -> None:
    """Log to stderr, for commands that run the engine without the server."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("galley").setLevel(settings.log_level.upper())


def with_flags(
    settings: type[EngineSettings] | tuple[str, ...],
    *,
    model: bool = False,
    extra: tuple[str, ...] = (),
    sampling: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command, through its parameter ``flags: Flags``, a flag for every setting.

    Args:
        settings: whose fields; ``EngineSettings`` where there is no server (``--log-level`` is
            added). Or the names of those that the command heeds.
        model: whether the model is a flag; otherwise the command takes it as an argument.
        extra: further settings.
        sampling: add the sampling parameters, too.
    """
    options = list(_setting_options(settings, model=model, extra=extra))
    if sampling:
        options += _sampling_options()

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(context: typer.Context, config: Path | None, **values: object) -> None:
            given = {option.name: values.pop(option.name) for option in options}
            flags = Flags(
                {
                    name: tuple(value) if isinstance(value, list) else value
                    for name, value in given.items()
                    if _on_command_line(context, name)
                },
                config,
            )
            command(flags=flags, **values)

        own = [p for name, p in inspect.signature(command).parameters.items() if name != "flags"]
        parameters = [_CONTEXT, *own, _CONFIG, *options]
        signature = inspect.Signature(
            [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        )
        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _setting_options(
    chosen: type[EngineSettings] | tuple[str, ...], *, model: bool, extra: tuple[str, ...]
) -> Iterator[inspect.Parameter]:
    kinds = setting_types(Settings)
    if isinstance(chosen, tuple):
        wanted = {*chosen, *extra}
    else:
        wanted = {field.name for field in dataclasses.fields(chosen)} | {"log_level", *extra}
    for field in dataclasses.fields(Settings):
        if field.name in wanted and (model or field.name != "model"):
            yield _option(
                field.name,
                kinds[field.name],
                field.default,
                help=field.metadata["help"],
                panel=field.metadata["group"],
            )


def _sampling_options() -> Iterator[inspect.Parameter]:
    kinds = typing.get_type_hints(SamplingParams)
    for name, help_text in SAMPLING_HELP.items():
        yield _option(name, kinds[name], None, help=help_text, panel="Sampling")


def _option(
    name: str, kind: object, default: object, *, help: str, panel: str
) -> inspect.Parameter:
    flag = name.replace("_", "-")
    info = typer.Option(
        f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}",
        help=help,
        rich_help_panel=panel,
        show_default=default not in (None, "", ()),
        metavar="" if kind is bool else "TEXT" if typing.get_origin(kind) is tuple else None,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default or None if isinstance(default, tuple) else default,
        annotation=Annotated[_flag_type(kind), info],
    )


def _flag_type(kind: object) -> object:
    """What typer parses for a field of type ``kind``: lists for tuples, the rest as it is."""
    origin = typing.get_origin(kind)
    if origin is tuple:
        return list[str] | None
    if origin is types.UnionType or origin is Literal or kind in (bool, int, float, str):
        return kind
    raise TypeError(f"no flag can be made of the type {kind}")


_CONTEXT: Final = inspect.Parameter(
    "context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
)
_CONFIG: Final = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="settings as YAML; default: galley.yaml in this folder, if there is one",
        ),
    ],
)
