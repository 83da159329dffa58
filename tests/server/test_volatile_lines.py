"""A prompt line that changes with every request, and the tokens that come from the prefix cache."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.serving import Server
from tests.tools.checkpoint import make_calling

pytestmark = pytest.mark.xdist_group("server_protocols")

RULES = "You write code for whoever asks. " * 20


WAYS = ("keep", "move", "drop")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One checkpoint, under a name for each setting."""
    folder = tmp_path_factory.mktemp("models") / "calling"
    make_calling(folder, max_position_embeddings=4096)
    models = [part for how in WAYS for part in (f"{how}={folder}", f"{how}.volatile_lines={how}")]
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(models, log, kv_cache_tokens=8192, threads=1) as running:
        yield running


def usage(server: Server, how: str, number: int) -> Any:
    """Return request ``number`` of a conversation, as Claude Code sends it."""
    head = f"x-anthropic-billing-header: cc_version=2.1.9; cch={number:05d};"
    turns = [
        {"role": role, "content": f"Turn {n} of what is said."}
        for n in range(number)
        for role in ("user", "assistant")
    ]
    body = {
        "model": how,
        "max_tokens": 1,
        "system": [{"type": "text", "text": head}, {"type": "text", "text": RULES}],
        "messages": [*turns, {"role": "user", "content": "And now?"}],
    }
    answer = httpx.post(f"{server.url}/v1/messages", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]


@pytest.mark.parametrize("how", WAYS)
def test_what_the_prefix_cache_has_of_a_conversation(server: Server, how: str) -> None:
    first, second = usage(server, how, 1), usage(server, how, 2)
    whole = first["input_tokens"] + first["cache_read_input_tokens"]
    if how == "keep":
        assert second["cache_read_input_tokens"] < 128
    else:
        assert second["cache_read_input_tokens"] > 0.8 * whole
