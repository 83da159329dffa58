"""A record on a disk that is full."""

import subprocess
import sys
from pathlib import Path

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
    begun.ended([1], "stop", cached=0, ttft_ms=None, duration_ms=1.0)
recorder.close()
recorder.close()
print("closed")
"""


def test_a_record_on_a_full_disk_ends_with_a_warning(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True)
    assert done.stdout == "closed\n", done.stderr
    assert "record cannot be written: [Errno 27]" in done.stderr
