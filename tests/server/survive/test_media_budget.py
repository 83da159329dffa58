"""Small recordings that are expensive to decode: a fork dies, the answer is 400, others continue."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.server.refusals import error_of
from tests.server.serving import Server, until
from tests.server.survive.media import media_server, transcribe, wav
from tests.speech.hostile_files import TOO_MUCH, mp4

pytestmark = pytest.mark.xdist_group("server_media_budget")

MIB = 2**20


@pytest.fixture(scope="module")
def server(
    model: Path, hearing: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    limits = {
        "max_audio_seconds": 14_400,
        "audio_decode_seconds": 0.5,
        "audio_decode_bytes": 128 * MIB,
    }
    with media_server(model, hearing, tmp_path_factory.mktemp("server"), **limits) as running:
        yield running


def decoder_of(server: Server) -> psutil.Process:
    """Return the process whose forks decode."""
    [found] = [p for p in server.decoders() if p.ppid() == server.process.pid]
    return found


@pytest.mark.parametrize("case", TOO_MUCH)
def test_a_recording_that_wants_too_much(http: httpx.Client, server: Server, case: str) -> None:
    make, says = TOO_MUCH[case]
    assert transcribe(http, wav(bytes(32_000))).status_code == 200
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    error = error_of(transcribe(http, make(), "call.mp4"))
    assert (error["type"], error["param"]) == ("invalid_request_error", "file")
    assert "call.mp4" in error["message"]
    assert says in error["message"]
    assert process.memory_info().rss - before < 48 * MIB
    until(lambda: not decoder_of(server).children())
    assert transcribe(http, wav(bytes(32_000))).status_code == 200


def test_a_stream_of_events_ends_with_the_error(http: httpx.Client) -> None:
    make, says = TOO_MUCH["flac-hours"]
    answer = transcribe(http, make(), "call.flac", stream="true")
    assert says in answer.text


def test_many_tracks_leave_no_memory_behind(http: httpx.Client, server: Server) -> None:
    assert transcribe(http, mp4(3)).status_code == 200
    worker = decoder_of(server)
    before = worker.memory_info().rss
    for _ in range(3):
        answer = transcribe(http, mp4(200), "film.mp4", response_format="verbose_json")
        assert answer.status_code == 200
        assert "track 1 of 200" in answer.json()["warnings"][0]
    until(lambda: not worker.children())
    assert worker.memory_info().rss < before + 4 * MIB


def test_a_decoder_that_was_killed_is_replaced(http: httpx.Client, server: Server) -> None:
    assert transcribe(http, wav(bytes(32_000))).status_code == 200
    worker = decoder_of(server)
    worker.kill()
    assert transcribe(http, wav(bytes(32_000))).status_code == 200
    assert decoder_of(server).pid != worker.pid
