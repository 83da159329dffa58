"""``galley replica``: engines for servers on other machines."""

import click

from galley.cli.options import Command, Flags, with_flags
from galley.settings.engine import EngineSettings


@click.command(
    cls=Command,
    examples=(
        "galley replica org/name --host 10.0.0.7 --port 8500 --cluster-token-file token",
        "galley serve org/name --replica 10.0.0.7:8500 --cluster-token-file token",
    ),
)
@with_flags(
    EngineSettings,
    extra=(
        "host",
        "port",
        "replicas",
        "role",
        "kv_transfer",
        "kv_transfer_seconds",
        "kv_hold_seconds",
        "drain_seconds",
        "stall_seconds",
        "step_timeout",
        "log_format",
    ),
)
@click.argument("model", required=False, help="folder, GGUF file, hub id or short name")
def replica(flags: Flags, model: str | None) -> None:
    """Run a model's engines for servers on other machines.

    A server uses them with --replica HOST:PORT. Both sides need the same cluster_token_file. SIGTERM has
    the servers continue their requests elsewhere first.
    """
    settings = flags.settings(model=model)
    from galley.cluster.run import run_replica

    raise click.exceptions.Exit(run_replica(settings))
