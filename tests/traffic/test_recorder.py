"""A record on a disk that is full, or slow."""

import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from galley.traffic.recorder import Recorder
from galley.types import SamplingParams

FULL = """
import resource, signal, sys
from pathlib import Path
from galley.traffic.recorder import Recorder
from galley.types import SamplingParams

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
recorder = Recorder(Path(sys.argv[1]), 1 << 30)
resource.setrlimit(resource.RLIMIT_FSIZE, (40, resource.RLIM_INFINITY))
for _ in range(3):
    begun = recorder.begin(
        [[1, 2]], SamplingParams(), arrived=0.0, tenant="", scope="", model="m", endpoint="/"
    )
    begun.ended([[[7]]], "stop", cached=0, ttft_ms=None, duration_ms=1.0)
recorder.close()
recorder.close()
print("closed")
"""


def test_a_record_on_a_full_disk_ends_with_a_warning(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True)
    assert done.stdout == "closed\n", done.stderr
    assert "record cannot be written: [Errno 27]" in done.stderr


def test_prompts_that_wait_for_a_stalled_disk_are_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(tmp_path, 1 << 30)
    stalled, goes_on = threading.Event(), threading.Event()

    def stall() -> bytes:
        stalled.set()
        goes_on.wait()
        return b""

    recorder.write(stall, 0)
    stalled.wait()
    held: list[weakref.ref[Prompt]] = []
    for _ in range(100):
        prompt = Prompt([1] * 99_999)  # and one token of the answer
        held.append(weakref.ref(prompt))
        begun = recorder.begin(
            [prompt], SamplingParams(), arrived=0.0, tenant="", scope="", model="m", endpoint="/"
        )
        begun.ended([[[7]]], "stop", cached=0, ttft_ms=None, duration_ms=1.0)
        del prompt, begun
    assert sum(one() is not None for one in held) == 40
    goes_on.set()
    recorder.close()
    assert "the record lacks 60 requests" in caplog.text
    [file] = tmp_path.glob("trace-*.jsonl")
    assert len(file.read_bytes().splitlines()) == 40


class Prompt(list[int]):
    """Token ids that can be watched."""
