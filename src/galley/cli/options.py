"""Command-line flags made from the declarations of settings and sampling parameters.

A command that is decorated with :func:`with_flags` gets one :class:`Flags` object. It holds only the values
given on the command line; environment variables, the settings file and defaults supply the rest.
"""

import dataclasses
import functools
import logging
import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import click
from click.core import ParameterSource

from galley.errors import SettingsError
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings
from galley.settings.fields import setting_types
from galley.settings.named_models import named_models
from galley.types import SamplingParams

EPILOG: Final = (
    "Each setting can also be a line of galley.yaml (max_running: 32) or a variable "
    "(GALLEY_MAX_RUNNING=32). A flag wins over a variable, a variable over the file."
)

_ALL: Final = "galley.help_all"
"""Key of a context's ``meta`` where its help is to list all options."""

_WHOLE_SENTENCE: Final = 10_000
"""Characters of a command's summary; click would otherwise truncate it to one line."""

MODEL_HELP: Final = (
    "folder, GGUF file, hub id (org/name) or short name (llama3.2); default: galley-demo"
)

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
    """The settings and sampling parameters given on the command line, by name, and ``--config``."""

    given: Mapping[str, object]
    file: Path | None

    def settings(self, *, model: str | None = None) -> Settings:
        """Return the settings of all sources, for one model; ``model``: the positional argument, if given.

        Raises:
            SettingsError: a value in any source is wrong.
        """
        return self._merged({"models": ()} if model is None else {"models": (), "model": model})

    def settings_of(self, models: Sequence[str]) -> Settings:
        """Return the settings of all sources, for several models.

        Args:
            models: the positional arguments: MODEL, or NAME=MODEL ..., or none.

        Raises:
            SettingsError: a value in any source is wrong.
        """
        if not models:
            return self._merged({})
        if list(models) == [""]:
            raise SettingsError(
                "the argument MODEL is empty; for the demo model, write galley-demo or leave it out"
            )
        if len(models) == 1 and "=" not in models[0]:
            return self.settings(model=models[0])
        return self._merged({"models": named_models(models)})

    def _merged(self, more: Mapping[str, object]) -> Settings:
        names = setting_types(Settings).keys()
        flags = {name: value for name, value in self.given.items() if name in names}
        return Settings.load({**flags, **more}, file=self.file)

    def sampling(self) -> SamplingParams:
        """Return the sampling parameters.

        Raises:
            RequestError: a value is out of range.
        """
        chosen = {name: value for name, value in self.given.items() if name in SAMPLING_HELP}
        return SamplingParams(**chosen)  # type: ignore[arg-type]  # click made them of these types


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
) -> "_Decorator":
    """Decorate a command with a flag for every setting; the values arrive as ``flags: Flags``.

    Args:
        settings: the class whose fields become flags, ``EngineSettings`` for commands without a server
            (``--log-level`` is added), of which ``--help`` lists the common ones; or the names of the
            settings that the command uses, all of which it lists.
        model: whether ``--model`` is a flag; else the command takes the model as an argument.
        extra: names of further settings.
        sampling: also add the sampling parameters.
    """
    options = list(_setting_options(settings, model=model, extra=extra))
    if sampling:
        options += _sampling_options()

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def call(context: click.Context, /, config: Path | None, **values: object) -> None:
            given = {name: values.pop(name) for name, _ in options}
            given_flags = {name: v for name, v in given.items() if _on_command_line(context, name)}
            command(flags=Flags(given_flags, config), **values)

        # update_wrapper also copies the arguments that the click decorators below have declared.
        decorated: Callable[..., None] = functools.update_wrapper(click.pass_context(call), command)
        for _, option in reversed(options):
            decorated = option(decorated)
        return _CONFIG(decorated)

    return decorate


class Option(click.Option):
    """An option that help lists under its ``group``; ``--help`` leaves it out if it is ``rare``."""

    def __init__(
        self, *declarations: Any, group: str, rare: bool = False, **attributes: Any
    ) -> None:
        super().__init__(*declarations, **attributes)
        self.group = group
        self.rare = rare


class Choice(click.Choice[str]):
    """One of several words, some of which have other spellings."""

    def __init__(self, choices: Sequence[str], spellings: Mapping[str, str]) -> None:
        super().__init__(choices)
        self._spellings = spellings

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See :class:`click.Choice`."""
        return super().convert(self._spellings.get(value, value), param, ctx)


class _AboveZero(click.FloatRange):
    """A number above zero; click's ranges take NaN, which compares with nothing."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """See :class:`click.FloatRange`."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


ABOVE_ZERO: Final = _AboveZero()
"""The type of rates, seconds and prices."""


def _help_all(context: click.Context, _: click.Parameter, given: bool) -> None:
    """Print the help with all options, and end the command."""
    if given and not context.resilient_parsing:
        context.meta[_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


class Command(click.Command):
    """A command whose help lists options in groups, examples, and the other sources of settings.

    If it has rare options, ``--help-all`` lists these, too.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = tuple(examples)
        if any(isinstance(param, Option) for param in self.params):
            self.epilog = EPILOG
        if any(map(_is_rare, self.params)):
            self.params.append(
                click.Option(
                    ["--help-all"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    callback=_help_all,
                    help="Show all settings and exit.",
                )
            )

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See :class:`click.Command`; examples follow the text, where they are seen first."""
        super().format_help_text(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See :class:`click.Command`."""
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        left_out = [] if ctx.meta.get(_ALL) else list(filter(_is_rare, self.params))
        for param in self.get_params(ctx):
            if param in left_out:
                continue
            record = param.get_help_record(ctx)
            if record is not None and not isinstance(param, click.Argument):
                group = param.group if isinstance(param, Option) else "Options"
                groups.setdefault(group, []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)
        if left_out:
            formatter.write_paragraph()
            formatter.write_text(f"{len(left_out)} more settings: {ctx.command_path} --help-all")


class CommandWithOthers(Command):
    """A command whose first argument may be the name of another command instead of a value."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.others: dict[str, click.Command] = {}

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """See :class:`click.Command`; the context is that of the other command where one is named."""
        other = self.others.get(args[0]) if args else None
        if other is None:
            return super().make_context(info_name, args, parent, **extra)
        return other.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See :class:`click.Command`; the other commands come first."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (f"{ctx.info_name} {name}", other.get_short_help_str(limit=_WHOLE_SENTENCE))
                    for name, other in self.others.items()
                ]
            )
        super().format_options(ctx, formatter)


class Group(click.Group):
    """A command with subcommands, whose help has each one's whole first sentence, however long."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See :class:`click.Group`."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(limit=_WHOLE_SENTENCE))
            for name, command in commands
            if command is not None
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _is_rare(param: click.Parameter) -> bool:
    return isinstance(param, Option) and param.rare


_Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def _on_command_line(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _setting_options(
    chosen: type[EngineSettings] | tuple[str, ...], *, model: bool, extra: tuple[str, ...]
) -> Iterator[tuple[str, _Decorator]]:
    kinds = setting_types(Settings)
    if isinstance(chosen, tuple):
        wanted = {*chosen, *extra}
    else:
        wanted = {field.name for field in dataclasses.fields(chosen)} | {"log_level", *extra}
    for field in dataclasses.fields(Settings):
        if field.name in wanted - {"models"} and (model or field.name != "model"):
            yield (
                field.name,
                _option(
                    field.name,
                    kinds[field.name],
                    default=field.default,
                    help=field.metadata["help"],
                    group=field.metadata["group"],
                    rare=not (field.metadata["common"] or isinstance(chosen, tuple)),
                    alias=field.metadata["alias"],
                    spellings=field.metadata["spellings"],
                ),
            )


def _sampling_options() -> Iterator[tuple[str, _Decorator]]:
    kinds = typing.get_type_hints(SamplingParams)
    for name, help_text in SAMPLING_HELP.items():
        yield name, _option(name, kinds[name], default=None, help=help_text, group="Sampling")


def _option(
    field: str,
    kind: object,
    *,
    default: object,
    help: str,
    group: str,
    rare: bool = False,
    alias: str = "",
    spellings: Mapping[str, str] | None = None,
) -> _Decorator:
    flags = [n.replace("_", "-") for n in (field, alias) if n]
    return click.option(
        *(f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}" for flag in flags),
        field,
        cls=Option,
        group=group,
        rare=rare,
        help=help,
        default=default,
        show_default=default not in (None, "", ()),
        multiple=typing.get_origin(kind) is tuple,
        type=_flag_type(kind, spellings or {}),
    )


def _flag_type(kind: object, spellings: Mapping[str, str]) -> Any:
    """Return the click type for a field of type ``kind``: of items for tuples, of values for optionals."""
    origin = typing.get_origin(kind)
    if origin is Literal:
        return Choice(typing.get_args(kind), spellings)
    if origin is not None:
        return next(k for k in typing.get_args(kind) if k is not type(None))
    assert kind in (bool, int, float, str), kind
    return kind


_CONFIG: Final = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="YAML file of settings; default: galley.yaml in the working directory, if it exists",
)
