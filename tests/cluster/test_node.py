"""Which processes ``galley cluster down --node`` ends; ``test_on_ray`` has real nodes."""

import subprocess
import sys
from pathlib import Path

from galley.cluster.on_ray.node import _processes


def test_only_processes_of_the_node_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "galley-ray-a"
    arguments = [
        f"--session-dir={folder}/session_1",
        f"{folder}/session_1/logs/raylet.out",
        f"--session-dir={folder}-b/session_1",
    ]
    sleep = "import time; time.sleep(60)"
    processes = [subprocess.Popen([sys.executable, "-c", sleep, one]) for one in arguments]
    try:
        assert list(_processes(folder)) == [processes[0].pid]
    finally:
        for one in processes:
            one.kill()
            one.wait()
