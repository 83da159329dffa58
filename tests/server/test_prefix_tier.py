"""A server that is restarted goes on with the sessions that it had."""

from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import Server

PROMPT = "The quick brown fox jumps over the lazy dog. " * 8


def answer(server: Server) -> tuple[str, int, int]:
    """Return a greedy text, its prompt tokens and those of them that were cached."""
    made = server.openai().completions.create(
        model="tiny", prompt=PROMPT, max_tokens=8, temperature=0
    )
    assert made.usage is not None
    assert made.usage.prompt_tokens_details is not None
    cached = made.usage.prompt_tokens_details.cached_tokens or 0
    return made.choices[0].text, made.usage.prompt_tokens, cached


@pytest.mark.xdist_group("prefix_tier")
def test_a_restarted_server_reads_the_prefix_from_disk(model: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "kv_cache_tokens": 2048,
        "threads": 1,
        "prefix_cache_dir": tmp_path / "prefixes",
    }
    with Server(model, tmp_path / "log", **settings) as server:
        text, prompt, cached = answer(server)
        assert cached == 0
        assert server.stop() == 0
    with Server(model, tmp_path / "log", **settings) as server:
        assert answer(server)[:2] == (text, prompt)
        metrics = server.metrics()
        found = metrics["galley_prefix_disk_hit_tokens_total"]
        assert prompt - 17 < found == metrics["galley_cached_prompt_tokens_total"]
        assert metrics["galley_prefix_disk_bytes"] > 0
