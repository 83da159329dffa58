"""The values that a command gets from its flags."""

import click
from click.testing import CliRunner

from galley.cli.options import Command, Flags, with_flags
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings


def parse(
    args: list[str],
    *,
    kind: type[EngineSettings] = Settings,
    exit_code: int = 0,
    model: bool = False,
    sampling: bool = False,
) -> Flags:
    """Return the values that a command gets for ``args``; empty ones if it was not called."""
    caught: list[Flags] = []

    @click.command(cls=Command)
    @with_flags(kind, model=model, sampling=sampling)
    @click.argument("name", required=False)
    def command(flags: Flags, name: str | None) -> None:
        caught.append(flags)

    result = CliRunner().invoke(command, args)
    assert result.exit_code == exit_code, result.output
    return caught[0] if caught else Flags({}, None)
