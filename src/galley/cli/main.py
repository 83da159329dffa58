"""The entry point: commands are registered here, and errors become one line and an exit code."""

import errno
import logging
import os
import sys
from importlib import import_module
from typing import Final

import click

from galley import __version__
from galley.cli.options import Group
from galley.errors import GalleyError, SettingsError

_COMPLETION: Final = (
    'Tab completion: eval "$(_GALLEY_COMPLETE=bash_source galley)" in ~/.bashrc, with zsh_source in '
    "~/.zshrc; for fish: _GALLEY_COMPLETE=fish_source galley | source"
)

_COMMANDS: Final = {
    "audit": "audit:audit_group",
    "batch": "batch:batch",
    "bench": "bench:bench_group",
    "cache": "cache:cache_group",
    "call": "call:call",
    "calls": "calls:calls_group",
    "cluster": "cluster:cluster_group",
    "compare": "compare:compare",
    "distill": "distill:distill",
    "doctor": "doctor:doctor",
    "embed": "embed:embed",
    "eval": "eval:eval_group",
    "graph": "graph:graph",
    "keygen": "keygen:keygen",
    "lab": "lab:lab",
    "list": "pull:list_models",
    "plan": "plan:plan",
    "ps": "ps:ps",
    "pull": "pull:pull",
    "qat": "qat:qat",
    "quantize": "quantize:quantize",
    "rank": "rank:rank",
    "replay": "replay:replay",
    "replica": "replica:replica",
    "rm": "pull:rm",
    "run": "run:run",
    "serve": "serve:serve",
    "speak": "speak:speak",
    "transcribe": "transcribe:transcribe",
    "tune": "tune:tune",
}
"""Command -> module in this package and the name in it; a command imports no other command's module."""


class _Commands(Group):
    """The group of all commands, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See :class:`click.Group`."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See :class:`click.Group`."""
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command = getattr(import_module(f"galley.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=_Commands,
    epilog=_COMPLETION,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="galley %(version)s")
def app() -> None:
    """Serve language, speech, embedding and tensor models; plan, quantize and measure them."""


def main() -> None:
    """Run the command line. Exit codes: 0 success, 1 failure, 2 wrong usage or settings, 130 Ctrl-C."""
    try:
        # A command's exit code, or None, which means 0.
        sys.exit(app.main(prog_name="galley", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except GalleyError as error:
        # Only --log-level debug enables this; a user's mistake needs no traceback.
        logging.getLogger("galley").debug("the command failed", exc_info=error)
        print(f"galley: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2 if isinstance(error, SettingsError) else 1)
    except OSError as error:
        # A file or folder that the user named, or a disk that is full: writing to an open file names none.
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        logging.getLogger("galley").debug("the command failed", exc_info=error)
        print(f"galley: {_path(error)}{error.strerror}", file=sys.stderr)
        sys.exit(1)


def _path(error: OSError) -> str:
    """Return the file that an error is about and a colon; nothing if the error names none."""
    name = error.filename
    if name is None:
        return ""
    return f"{os.fsdecode(name) if isinstance(name, str | bytes) else name}: "
