"""The entry point: commands are registered here, and errors become one line and an exit code."""

import logging
import sys
from typing import Final

import click

from galley import __version__
from galley.cli.audit import audit_group
from galley.cli.batch import batch
from galley.cli.bench import bench_group
from galley.cli.cache import cache_group
from galley.cli.call import call
from galley.cli.calls import calls_group
from galley.cli.cluster import cluster_group
from galley.cli.compare import compare
from galley.cli.distill import distill
from galley.cli.doctor import doctor
from galley.cli.embed import embed
from galley.cli.eval import eval_group
from galley.cli.graph import graph
from galley.cli.keygen import keygen
from galley.cli.lab import lab
from galley.cli.options import Group
from galley.cli.plan import plan
from galley.cli.plan_cluster import plan_cluster
from galley.cli.ps import ps
from galley.cli.pull import list_models, pull, rm
from galley.cli.qat import qat
from galley.cli.quantize import quantize
from galley.cli.replay import replay
from galley.cli.replica import replica
from galley.cli.run import run
from galley.cli.serve import serve
from galley.cli.speak import speak
from galley.cli.transcribe import transcribe
from galley.cli.tune import tune
from galley.errors import GalleyError, SettingsError

_COMPLETION: Final = (
    'Tab completion: eval "$(_GALLEY_COMPLETE=bash_source galley)" in ~/.bashrc, with zsh_source in '
    "~/.zshrc; for fish: _GALLEY_COMPLETE=fish_source galley | source"
)


@click.group(
    cls=Group,
    epilog=_COMPLETION,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="galley %(version)s")
def app() -> None:
    """Serve language models as cheaply as a given quality and latency allow."""


for command in (
    serve,
    replica,
    cluster_group,
    run,
    batch,
    embed,
    transcribe,
    speak,
    call,
    calls_group,
    plan,
    doctor,
    graph,
    eval_group,
    bench_group,
    lab,
    compare,
    replay,
    tune,
    quantize,
    distill,
    qat,
    cache_group,
    audit_group,
    keygen,
    pull,
    list_models,
    ps,
    rm,
):
    app.add_command(command)

plan.others["cluster"] = plan_cluster


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
