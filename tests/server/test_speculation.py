"""Speculation as seen by clients and operators."""

from collections.abc import Iterator

import httpx
import pytest

from tests.conftest import CheckpointMaker
from tests.server.refusals import error_of
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("server_speculation")

PLAIN = "/v1/completions"


@pytest.fixture(scope="module")
def server(
    checkpoint: CheckpointMaker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(
        checkpoint("llama"),
        log,
        served_model_name="tiny",
        kv_cache_tokens=4096,
        threads=1,
        speculation="auto",
    ) as running:
        yield running


def test_draft_tokens_are_counted_and_on_the_receipt(server: Server) -> None:
    """An earlier answer provides draft tokens, unless speculation is off."""
    before = server.metrics()
    body = {
        "model": "tiny",
        "prompt": "guess what",
        "seed": 1,
        "max_tokens": 60,
        "ignore_eos": True,
    }
    answers = [httpx.post(server.url + PLAIN, json=body).json() for _ in range(8)]
    plain = httpx.post(server.url + PLAIN, json=body | {"speculation": "off"}).json()
    assert "proposed_tokens" not in plain["usage"]
    texts = {answer["choices"][0]["text"] for answer in (plain, *answers)}
    assert len(texts) == 1
    usages = [answer["usage"] for answer in answers]

    def gained(kind: str) -> float:
        after = server.metrics()
        names = [
            f"galley_speculation_{kind}_tokens_total{{proposer={proposer}}}"
            for proposer in ("prompt", "recent")
        ]
        return sum(after[name] - before[name] for name in names)

    proposed, accepted = (
        sum(usage.get(f"{kind}_tokens", 0) for usage in usages) for kind in ("proposed", "accepted")
    )
    assert 0 < accepted <= proposed
    until(lambda: (gained("proposed"), gained("accepted")) == (proposed, accepted))


def test_an_unknown_speculation_is_named(server: Server) -> None:
    body = {"model": "tiny", "prompt": "the cat", "speculation": "maybe"}
    error = error_of(httpx.post(server.url + PLAIN, json=body), 400)
    assert error["param"] == "speculation"
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "speculation": 1}
    error = error_of(httpx.post(server.url + "/v1/chat/completions", json=chat), 400)
    assert error["param"] == "speculation"
