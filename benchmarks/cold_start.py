"""Time a start from packed weights, as when a replica is scaled up from zero.

    python -m benchmarks.cold_start [--shape qwen2-0.5b | --model FOLDER] [--weight-dtype int8] [--starts 7]

The first start packs the weights and does not count. Each of the others is timed from the start of the
command to readiness, and to the first token of a short completion; the files are in the page cache. CPU
seconds (user and system) of all processes are those up to readiness, and tell more on a busy machine.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.peers.checkpoint import SHAPES, write_shape


class Start(NamedTuple):
    """One start: seconds to readiness and to the first token, CPU seconds by process, phases."""

    ready: float
    first_token: float
    cpu: dict[str, float]
    phases: str


def first_token(url: str) -> None:
    """Send a completion and read the answer, which is one token."""
    with urllib.request.urlopen(f"{url}/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    body = {"model": model, "prompt": "once upon a time", "max_tokens": 1}
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        answer.read()


def cpu_by_process(server: int) -> dict[str, float]:
    """Return the CPU seconds of a server and of each of its processes, by their modules."""
    found: dict[str, float] = {}
    process = psutil.Process(server)
    for one in (process, *process.children(recursive=True)):
        words = one.cmdline()
        name = words[words.index("-m") + 1] if "-m" in words else one.name()
        times = one.cpu_times()
        found[name] = found.get(name, 0.0) + times.user + times.system
    return found


def wait_for_packing(server: int) -> None:
    """Wait until the packed weights are on disk: until nothing has been written for two seconds."""
    process, seen = psutil.Process(server), -1
    while (written := written_bytes(process)) != seen:
        seen = written
        time.sleep(2)


def written_bytes(process: psutil.Process) -> int:
    """Return the bytes that a process and its children have written."""
    each = (process, *process.children(recursive=True))
    return sum(one.io_counters().write_chars for one in each)


def start(model: str, flags: list[str], *, packs: bool = False) -> Start:
    """Start a server, and stop it after its first token; if it ``packs``, after that."""
    command = [sys.executable, "-m", "galley", "serve", model, "--port", "0", *flags]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url, line = "", ""
        for line in server.stdout:
            if match := re.search(r"listens on (\S+)", line):
                url = match[1]
            if " ready after " in line:
                break
        ready = time.perf_counter() - began
        cpu = cpu_by_process(server.pid)
        first_token(url)
        first = time.perf_counter() - began
        if packs:
            wait_for_packing(server.pid)
        server.terminate()
    return Start(ready, first, cpu, line.strip())


def main() -> None:
    """Print the median and the range of each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--model", default="galley-demo")
    parser.add_argument("--weight-dtype", default="int8")
    parser.add_argument("--starts", type=int, default=7)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = wanted.model
        if wanted.shape:
            write_shape(Path(folder), wanted.shape)
            model = folder
        flags = ["--weight-dtype", wanted.weight_dtype]
        start(model, flags, packs=True)
        found = [start(model, flags) for _ in range(wanted.starts)]
    show("ready", [one.ready for one in found])
    show("first token", [one.first_token for one in found])
    for name in found[0].cpu:
        show(f"CPU, {name}", [one.cpu.get(name, 0.0) for one in found])
    show("CPU, all", [sum(one.cpu.values()) for one in found])
    print(found[-1].phases)


def show(name: str, seconds: list[float]) -> None:
    """Print the median of seconds, with the least and the greatest."""
    print(
        f"{name:<28} {statistics.median(seconds):6.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"
    )


if __name__ == "__main__":
    main()
