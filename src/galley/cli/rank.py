"""``galley rank``: a part of a model for an engine on another machine."""

import click

from galley.cli.options import Command, Flags, with_flags


@click.command(
    cls=Command,
    examples=(
        "galley rank org/name --host 10.0.0.8 --port 8600 --cluster-token-file token",
        "galley serve org/name --tensor-parallel 2 --tensor-parallel-rank 10.0.0.8:8600 "
        "--cluster-token-file token",
    ),
)
@with_flags(
    (
        "host",
        "port",
        "revision",
        "threads",
        "weight_cache",
        "cluster_token_file",
        "cluster_ca",
        "cluster_cert",
        "cluster_key",
        "log_format",
    )
)
@click.argument("model", required=False, help="folder, GGUF file, hub id or short name")
def rank(flags: Flags, model: str | None) -> None:
    """Compute a part of every layer of a model for an engine on another machine.

    The engine names this rank with --tensor-parallel-rank HOST:PORT; all other settings are those of the
    engine. All machines need the same checkpoint and the same cluster_token_file.
    """
    settings = flags.settings(model=model)
    from galley.service.rank_host import run_rank

    raise click.exceptions.Exit(run_rank(settings))
