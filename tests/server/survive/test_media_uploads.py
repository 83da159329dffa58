"""Uploads and live audio leave no files, share one bound, and survive a broken temporary folder."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from websockets.exceptions import ConnectionClosed

from galley.speech.audio import Recording
from tests.server.live_client import AT_16_KHZ, LiveClient, configure
from tests.server.refusals import error_of
from tests.server.serving import Server, until
from tests.server.survive.media import TRANSCRIPTIONS, media_server, transcribe, wav
from tests.speech.recordings import CALL

pytestmark = pytest.mark.xdist_group("server_media_uploads")

LARGE = wav(bytes(1_500_000))
"""A recording larger than what is kept in memory."""
BROKEN = LARGE[:12] + b"\xff" * len(LARGE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's temporary folder."""
    return tmp_path_factory.mktemp("uploads")


@pytest.fixture(scope="module")
def server(
    model: Path, hearing: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server")
    limits = {"max_upload_bytes": 6_000_000, "environ": {"TMPDIR": str(folder)}}
    with media_server(model, hearing, log, **limits) as running:
        yield running


def hang_up(server: Server, path: str, head: bytes) -> None:
    """Send the beginning of an upload, then disconnect."""
    with httpx.Client(base_url=server.url, timeout=2) as client, pytest.raises(ZeroDivisionError):
        client.post(path, content=_then_fail(head), headers={"Content-Type": FORM})


FORM = "multipart/form-data; boundary=x"
HEAD = (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="call.wav"\r\n\r\n'
    + LARGE[:-100]
)


def _then_fail(head: bytes) -> Iterator[bytes]:
    yield head
    raise ZeroDivisionError


def test_uploads_leave_no_descriptor_behind(server: Server, http: httpx.Client) -> None:
    process = psutil.Process(server.process.pid)
    assert transcribe(http, LARGE).status_code == 200  # load now what is loaded only once
    before = process.num_fds()
    for _ in range(3):
        assert transcribe(http, LARGE).status_code == 200
        assert transcribe(http, LARGE, stream="true").status_code == 200
        assert transcribe(http, BROKEN).status_code == 400
        assert transcribe(http, LARGE, language="klingon").status_code == 400
        assert transcribe(http, LARGE, model="other").status_code == 404
        hang_up(server, TRANSCRIPTIONS, HEAD)
    until(lambda: process.num_fds() <= before + 1)


def taken(server: Server, folder: Path) -> list[int]:
    """Return the bytes of each upload that the server keeps in ``folder``; its files are unlinked."""
    sizes = []
    for number in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed in the meantime
            if number.readlink().is_relative_to(folder):
                sizes.append(number.stat().st_size)
    return sizes


def test_uploads_in_progress_are_bounded_together(
    server: Server, http: httpx.Client, folder: Path
) -> None:
    """Each is within its limit; the fourth does not fit, and the first three continue."""
    halves = [threading.Event() for _ in range(3)]
    ended = threading.Event()
    statuses: list[int] = []

    def slowly(half: threading.Event) -> None:
        def parts() -> Iterator[bytes]:
            yield HEAD
            half.set()
            assert ended.wait(30)
            yield LARGE[-100:] + b"\r\n--x--\r\n"

        with server.client() as client:
            answer = client.post(TRANSCRIPTIONS, content=parts(), headers={"Content-Type": FORM})
            statuses.append(answer.status_code)

    threads = [threading.Thread(target=slowly, args=(half,)) for half in halves]
    for thread in threads:
        thread.start()
    assert all(half.wait(30) for half in halves)
    # Otherwise the fourth may be accepted before the third. A file's last bytes may still be buffered.
    until(lambda: sum(size > len(HEAD) - 20_000 for size in taken(server, folder)) == 3)

    def refused() -> httpx.Response | None:
        answer = transcribe(http, LARGE * 2)
        return answer if answer.status_code == 503 else None

    try:
        answer = until(refused)
        assert answer is not None
        error = error_of(answer, 503)
        assert error["code"] == "too_many_uploads"
        assert "--max-upload-bytes" in error["message"]
        assert int(answer.headers["Retry-After"]) > 0
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert statuses == [200] * 3
    assert transcribe(http, LARGE * 2).status_code == 200


def check_no_space(http: httpx.Client) -> None:
    answer = transcribe(http, LARGE)
    error = error_of(answer, 503)
    assert error["code"] == "no_space_for_uploads"
    assert int(answer.headers["Retry-After"]) > 0
    assert "/" not in error["message"]
    assert transcribe(http, LARGE[:200_000]).status_code == 200  # kept in memory


def test_a_full_temporary_folder_is_an_error_of_one_request(
    server: Server, http: httpx.Client
) -> None:
    process = psutil.Process(server.process.pid)
    limits = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        check_no_space(http)
    finally:
        process.rlimit(psutil.RLIMIT_FSIZE, limits)
    assert transcribe(http, LARGE).status_code == 200


def test_a_missing_temporary_folder_is_an_error_of_one_request(
    server: Server, http: httpx.Client, folder: Path
) -> None:
    assert transcribe(http, LARGE).status_code == 200
    aside = folder.rename(folder.with_name("aside"))
    try:
        check_no_space(http)
    finally:
        aside.rename(folder)
    assert transcribe(http, LARGE).status_code == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize("option", ["rw", "ro"], ids=["full", "read-only"])
def test_a_full_file_system_affects_no_other_request(
    server: Server, http: httpx.Client, folder: Path, option: str
) -> None:
    assert transcribe(http, LARGE).status_code == 200
    mount = ["mount", "-t", "tmpfs", "-o", f"size=64k,{option}", "none", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine allows no mounts")
    try:
        check_no_space(http)
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    assert transcribe(http, LARGE).status_code == 200


def test_speech_writes_no_file_and_opens_no_connection(tmp_path: Path) -> None:
    """Speech detection runs in a separate process with an empty home and empty caches."""
    work = (
        "import numpy as np\n"
        "from galley.speech.vad import SpeechDetector\n"
        "stream = SpeechDetector().stream()\n"
        "assert len(stream.feed(np.zeros(16000, np.float32))) == 31\n"
        "import onnxruntime, pathlib, time\n"
        "time.sleep(0.5)\n"
        "library = pathlib.Path('/proc/self/maps').read_text()\n"
        "assert 'onnxruntime' in library\n"
    )
    homes = {name: str(tmp_path / name) for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
    environ = {k: v for k, v in os.environ.items() if not k.startswith("ORT_")} | homes
    for home in homes.values():
        Path(home).mkdir()
    subprocess.run([sys.executable, "-c", work], env=environ, check=True, timeout=120)
    assert [str(path) for home in homes.values() for path in Path(home).rglob("*")] == []


def test_live_audio_faster_than_the_engine_is_not_buffered(server: Server) -> None:
    """While the engine is stopped the server stops reading, whatever is sent."""
    call = np.concatenate(list(Recording(CALL)))
    process = psutil.Process(server.process.pid)
    with LiveClient(server, "?intent=transcription&model=speech") as client:
        client.until("session.created")
        configure(client, **AT_16_KHZ)
        engine = server.engine("speech")
        engine.suspend()
        try:
            before = process.memory_info().rss

            def send() -> None:
                with suppress(ConnectionClosed):
                    for _ in range(90):
                        client.append(call, block=16_000)

            sending = threading.Thread(target=send, daemon=True)
            sending.start()
            sending.join(3)
            assert sending.is_alive(), "half an hour of audio was taken"
            assert process.memory_info().rss - before < 50e6
        finally:
            engine.resume()
        client.socket.socket.shutdown(2)
        sending.join(10)
