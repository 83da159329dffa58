"""The examples do what they say, against a real server with both bundled models."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from recipes.speech import CALL_DIR, heldout
from tests.cli.command import environment, free_port

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.xdist_group("cli-processes")
def test_a_recorded_call_becomes_its_ticket() -> None:
    port = free_port()
    models = ["chat=galley-demo", "speech=galley-demo-speech"]
    server = subprocess.Popen(
        [sys.executable, "-m", "galley", "serve", *models, "--port", str(port), "--threads", "1"],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    try:
        assert server.stdout
        assert any(b"are ready" in line for line in server.stdout)
        example = [sys.executable, str(EXAMPLES / "call_to_ticket.py")]
        done = subprocess.run(
            [*example, "--url", f"http://127.0.0.1:{port}/v1"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        call = msgspec.json.decode((CALL_DIR / "call.json").read_bytes(), type=heldout.Call)
        text, shown = done.stdout.split("\n", 1)
        made, wanted = json.loads(shown), json.loads(call.ticket)
        # No caller of training has this first name, and the speech model writes another.
        assert made.pop("name").split()[-1] == wanted.pop("name").split()[-1]
        assert made == wanted
        assert text.endswith(call.text.split("Ahmed")[1])
    finally:
        server.terminate()
        server.wait(30)
