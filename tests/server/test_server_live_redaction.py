"""Live audio of a server that redacts: no event has what the rules find."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from galley.redact.find import find_spans
from galley.redact.spans import KINDS
from galley.speech.audio import Recording
from tests.server.live_client import AT_16_KHZ, TEXT, LiveClient, configure
from tests.server.serving import Server, until
from tests.speech.recordings import CALL

pytestmark = pytest.mark.xdist_group("server_live_redaction")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    models = ["ears=galley-demo-speech", f"chat={model}"]
    with Server(models, log, threads=1, redact="all") as running:
        yield running


def texts(events: list[dict[str, Any]]) -> str:
    """Return all text of the events, of whatever type."""
    return " ".join(event.get(field) or "" for event in events for field in ("delta", "transcript"))


def test_live_text_is_redacted_and_deltas_are_the_transcript(server: Server) -> None:
    sound = np.concatenate([*Recording(CALL), np.zeros(16_000, np.float32)])
    with LiveClient(server) as client:
        client.until("session.created")
        configure(client, **AT_16_KHZ)
        client.append(sound)
        done = [client.until(f"{TEXT}completed") for _ in range(2)]
    said = texts(client.events)
    assert "[" in said
    assert not find_spans(said, KINDS, set())
    for event in done:
        deltas = [e["delta"] for e in client.of(f"{TEXT}delta") if e["item_id"] == event["item_id"]]
        assert "".join(deltas) == event["transcript"]
    until(lambda: "redacted" in server.log)


def test_interim_texts_are_refused(server: Server) -> None:
    with LiveClient(server) as client:
        client.until("session.created")
        session = {"type": "transcription", "include": ["item.input_audio_transcription.interim"]}
        client.send("session.update", session=session)
        error = client.until("error")["error"]
    assert (error["param"], "redacts" in error["message"]) == ("session.include", True)


def test_conversations_are_refused(server: Server) -> None:
    """The model would hear, and answer, what was not redacted."""
    with pytest.raises(InvalidStatus) as refused, LiveClient(server, "?model=chat"):
        pass
    assert refused.value.response.status_code == 400
    assert b"redacts transcripts" in refused.value.response.body
