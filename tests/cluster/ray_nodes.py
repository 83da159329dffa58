"""A Ray cluster of several nodes on this machine, and a cluster of Galley's on it."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.cluster.admin import ADMIN_KEY
from tests.server.serving import until

START_SECONDS = 120


@contextmanager
def ray_nodes(token: Path, count: int = 3) -> Iterator[str]:
    """Run a Ray cluster of several nodes; yield its address. Skip the test if Ray is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        # Ray reads the first two when it is imported.
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("GALLEY_ADMIN_KEY", ADMIN_KEY)
        pytest.importorskip("ray", reason="extra ray")
        with _running(count) as address:
            yield address


@contextmanager
def _running(count: int) -> Iterator[str]:
    from ray.cluster_utils import Cluster

    limits = {"num_cpus": 4, "object_store_memory": 80_000_000, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args={**limits, "num_cpus": 4})
    try:
        for _ in range(count - 1):
            nodes.add_node(num_cpus=4, object_store_memory=80_000_000)
        yield nodes.address
    finally:
        import ray

        if ray.is_initialized():
            ray.shutdown()
        nodes.shutdown()


class OnRay:
    """A cluster that is deployed by commands, as an operator does."""

    def __init__(self, folder: Path, address: str, token: Path, first_port: int) -> None:
        host, _, port = address.rpartition(":")
        self.file = folder / "cluster.yaml"
        self.log = folder / "commands.log"
        self.content: dict[str, Any] = {
            "name": f"test{first_port}",
            "network": {
                "token_file": str(token),
                "host": "127.0.0.1",
                "ports": [first_port + 100, first_port + 199],
            },
            "gateways": {
                "ports": [first_port, first_port + 20],
                "cpus": 0.1,
                "settings": {"stall_seconds": 3, "metrics_without_key": True},
            },
            "rollout": {"ready_seconds": START_SECONDS, "drain_seconds": 60},
            "ray": {"node_ip": host, "port": int(port)},
            "models": {},
        }

    def model(self, name: str, folder: Path, **more: Any) -> None:
        """Describe a model in the file."""
        settings = {"kv_cache_tokens": 32768, "threads": 1, "max_adapters": 4, "speculation": "off"}
        self.content["models"][name] = {
            "model": str(folder),
            "settings": settings,
            "resources": {"cpus": 0.5},
            **more,
        }

    def command(self, name: str, *flags: str, check: bool = True) -> str:
        """Run ``galley cluster NAME FILE``; return what it prints."""
        self.file.write_text(json.dumps(self.content))
        done = subprocess.run(
            [sys.executable, "-m", "galley", "cluster", name, *flags, str(self.file)],
            capture_output=True,
            text=True,
            timeout=300,
        )
        with self.log.open("a") as log:
            log.write(done.stdout + done.stderr)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout if check else done.stdout + done.stderr

    def deploy(self) -> str:
        """Deploy, and return the URL of a gateway whose models are ready."""
        said = self.command("deploy")
        urls = [line.split()[1] for line in said.splitlines() if line.startswith("gateway ")]
        url = sorted(urls)[0]
        until(lambda: _is_ready(url), START_SECONDS)
        return url

    @property
    def actors(self) -> list[psutil.Process]:
        """The processes of replicas."""
        return [one for one in _named("ray::ServeReplica:") if ":Replica" in _title(one)]

    @property
    def gateways(self) -> list[psutil.Process]:
        """The processes of gateways in Ray."""
        return [one for one in _named("ray::ServeReplica:") if ":Gateway" in _title(one)]

    @property
    def serving(self) -> list[psutil.Process]:
        """The processes of replicas that have an engine."""
        return [
            one
            for one in self.actors
            if any("galley.service.worker" in _title(child) for child in _children(one))
        ]

    @property
    def engines(self) -> list[psutil.Process]:
        """The engine processes of replicas."""
        return [
            child
            for one in self.actors
            for child in _children(one)
            if "galley.service.worker" in _title(child)
        ]


def kill(processes: list[psutil.Process], number: int = signal.SIGKILL) -> None:
    """Send a signal to processes, those that have just ended excepted."""
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(number)


def with_children(process: psutil.Process) -> list[psutil.Process]:
    """Return a process and those below it."""
    return [*_children(process), process]


def leftovers() -> list[str]:
    """Return the command lines of Galley's processes whose cluster has gone."""
    marks = ("galley-gateway-", "ray::ServeReplica")
    return [_title(one) for one in psutil.process_iter() if any(m in _title(one) for m in marks)]


def _named(prefix: str) -> list[psutil.Process]:
    mine = psutil.Process()
    below = {one.pid for one in mine.children(recursive=True)}
    found = [one for one in psutil.process_iter() if _title(one).startswith(prefix)]
    return [one for one in found if one.pid in below] or found


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
