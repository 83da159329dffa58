"""The Ray node of this machine, which ``galley cluster up`` starts and ``down`` stops; imports no Ray."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from galley.cluster.config import ClusterConfig
from galley.cluster.extra import ray_environment
from galley.errors import GalleyError

_FIXED_PORTS: Final = (
    "--node-manager-port",
    "--object-manager-port",
    "--runtime-env-agent-port",
    "--dashboard-agent-listen-port",
    "--dashboard-agent-grpc-port",
    "--metrics-export-port",
)
"""Flags of ports of a Ray node, which have the first ports of the range; workers have the others."""

_START_SECONDS: Final = 120.0
_END_SECONDS: Final = 10.0


def start_node(config: ClusterConfig) -> str:
    """Start a Ray node on this machine, the head or one that joins it; return the head's address.

    Raises:
        GalleyError: Ray does not start; the error has what it says.
        SettingsError: the token cannot be read.
    """
    node = config.ray
    folder = _folder(config)
    if list(_processes(folder)):
        raise GalleyError(
            f"there is a Ray node of {config.name} on this machine already; galley cluster down stops it"
        )
    first, last = node.ports
    numbers = range(first, first + len(_FIXED_PORTS))
    flags = [f"{flag}={number}" for flag, number in zip(_FIXED_PORTS, numbers, strict=True)]
    flags += [f"--min-worker-port={numbers.stop}", f"--max-worker-port={last}"]
    flags += [f"--node-ip-address={node.node_ip}", "--include-dashboard=false"]
    flags += [f"--object-store-memory={node.object_store_bytes}", "--disable-usage-stats"]
    flags += [f"--num-cpus={node.cpus}"] * bool(node.cpus)
    flags += [f"--memory={node.memory_bytes}"] * bool(node.memory_bytes)
    if node.address:
        flags.append(f"--address={node.address}")
    else:
        flags += ["--head", f"--port={node.port}", f"--temp-dir={folder}"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *flags]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **ray_environment(config.network.token_file)},
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise GalleyError(f"Ray did not start within {_START_SECONDS:.0f} seconds") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise GalleyError("Ray did not start: " + "\n".join(said[-10:]))
    return head_address(config)


def stop_node(config: ClusterConfig) -> int:
    """End the node that :func:`start_node` started on this machine; return how many processes ended."""
    folder = _folder(config)
    pids = list(_processes(folder))
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _processes(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + _END_SECONDS
        while list(_processes(folder)) and time.monotonic() < deadline:
            time.sleep(0.1)
    return len(pids)


def head_address(config: ClusterConfig) -> str:
    """Return HOST:PORT of the head node."""
    return config.ray.address or f"{config.ray.node_ip}:{config.ray.port}"


def _folder(config: ClusterConfig) -> Path:
    return Path(tempfile.gettempdir()) / f"galley-ray-{config.name}"


def _processes(folder: Path) -> Iterator[int]:
    """Yield this user's processes of the Ray node that has this folder: flags of theirs name it.

    An editor or a pager that shows the node's logs is none of them.
    """
    mark = f"={folder}/".encode()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            mine = entry.stat().st_uid == os.geteuid()
            command = entry.read_bytes()
            if mine and mark in command and int(entry.parent.name) != os.getpid():
                yield int(entry.parent.name)
