"""A real Prometheus in a separate process that scrapes a server and evaluates deploy's rules."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import pytest

from tests.cli.command import free_port
from tests.server.serving import until

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus/alerts.yml"

FASTER = {"1d": "40s", "15m": "8s", "10m": "3s", "5m": "5s", "2m": "4s", "1m": "2s"}
"""Durations in the rules -> their replacements in runs that take seconds instead of days."""

CONFIG = """
global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: galley
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def needed(program: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``; skip the test if Debian's package is missing."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed (Debian's package prometheus)")
    return found


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Return promtool's output."""
    return subprocess.run(
        [needed("promtool"), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "GOGC": "400"},  # a fifth of its time is garbage collection otherwise
    )


def faster(rules: str) -> str:
    """Return the same rules with every duration in seconds."""
    return re.sub(
        r"(?<=[\[ ])(1d|15m|10m|5m|2m|1m)(?=[\]\n )])", lambda match: FASTER[match[1]], rules
    )


class Prometheus:
    """A Prometheus started on entry, killed on exit. ``rules``: the text of its rule file."""

    def __init__(self, folder: Path, scrapes: int, rules: str) -> None:
        (folder / "rules.yml").write_text(rules)
        (folder / "prometheus.yml").write_text(CONFIG.format(port=scrapes))
        self._folder = folder
        self._port = free_port()

    def __enter__(self) -> Self:
        command = [
            needed("prometheus"),
            f"--config.file={self._folder}/prometheus.yml",
            f"--storage.tsdb.path={self._folder}/data",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        until(self._is_ready)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            return httpx.get(f"http://127.0.0.1:{self._port}/-/ready").status_code == 200
        except httpx.TransportError:
            time.sleep(0.1)
            return False

    def query(self, expression: str) -> list[Mapping[str, Any]]:
        """Return the samples of an instant query."""
        url = f"http://127.0.0.1:{self._port}/api/v1/query"
        answer = httpx.get(url, params={"query": expression}).json()
        assert answer["status"] == "success", (expression, answer)
        result: list[Mapping[str, Any]] = answer["data"]["result"]
        return result

    def firing(self) -> set[str]:
        """Return the names of the firing alerts."""
        found = self.query('ALERTS{alertstate="firing"}')
        return {sample["metric"]["alertname"] for sample in found}
