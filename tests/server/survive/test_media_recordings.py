"""Damaged, falsely labeled or misdirected recordings are refused, or decoded as far as possible."""

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

from galley.speech.audio import Recording
from tests.server.refusals import error_of
from tests.server.serving import Server
from tests.server.survive.media import (
    MOST_BYTES,
    MOST_SECONDS,
    TRANSCRIPTIONS,
    media_server,
    transcribe,
    wav,
)
from tests.speech.recordings import CALL, encode, tone

pytestmark = pytest.mark.xdist_group("server_media_recordings")

SECOND = (tone(1, 16_000) * 32767).astype("<i2").tobytes()
HOUR = 3600 * 16_000


@pytest.fixture(scope="module")
def server(
    model: Path, hearing: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with media_server(model, hearing, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def speech() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return eight seconds of the recording, at 16 kHz."""
    return np.concatenate(list(Recording(CALL)))[: 8 * 16_000]


# Addresses in place of recordings.


@pytest.fixture
def watched() -> Iterator[socket.socket]:
    """A listener on loopback that must receive no connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("scheme", ["http://127.0.0.1:{port}/call.wav", "file:///etc/hostname"])
@pytest.mark.parametrize("field", ["file", "url", "audio_url"])
def test_an_address_instead_of_a_recording_is_refused(
    http: httpx.Client, watched: socket.socket, field: str, scheme: str
) -> None:
    address = scheme.format(port=watched.getsockname()[1])
    answer = http.post(TRANSCRIPTIONS, files={field: (None, address), "model": (None, "speech")})
    assert error_of(answer)["param"] in (field, "file")


PLAYLISTS = {
    "m3u": "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{address}\n#EXT-X-ENDLIST\n",
    "concat": "ffconcat version 1.0\nfile '{address}'\n",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio {port} RTP/AVP 0\n",
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static">'
    "<Period><AdaptationSet><Representation><BaseURL>{address}</BaseURL></Representation>"
    "</AdaptationSet></Period></MPD>",
    "address": "{address}",
}


@pytest.mark.parametrize("kind", PLAYLISTS)
def test_a_file_that_names_an_address_opens_no_connection(
    http: httpx.Client, watched: socket.socket, kind: str
) -> None:
    port = watched.getsockname()[1]
    for address in (f"http://127.0.0.1:{port}/call.wav", "file:///etc/hostname"):
        data = PLAYLISTS[kind].format(address=address, port=port).encode()
        assert error_of(transcribe(http, data, f"call.{kind}"))["param"] == "file"


# Damaged, false and silent recordings.


def nan() -> bytes:
    samples = tone(1, 48_000)
    samples[100] = np.nan
    return encode("wav-float", samples)


def flac_of_zeros(seconds: int, *, stated: int) -> bytes:
    """Return a FLAC file; ``stated`` is the header's sample count, 0 if unknown (RFC 9639, 8.2)."""
    data = bytearray(encode("flac", np.zeros(seconds * 16_000, np.float32)))
    data[21] = data[21] & 0xF0 | stated >> 32
    data[22:26] = struct.pack(">I", stated & 0xFFFFFFFF)
    return bytes(data)


BAD = {
    "empty": (b"", 400, "is not audio"),
    "header-only": (wav(b""), 400, "is a WAV header without samples"),
    "nan": (nan(), 400, "not numbers"),
    "zero-hertz": (wav(SECOND, rate=0), 400, ""),
    "text-called-mp3": (b"This is text. " * 500, 400, "is not audio"),
    "twelve-hours": (flac_of_zeros(1, stated=12 * HOUR), 413, "lasts 43200 s; the limit is 60 s"),
    "too-many-bytes": (bytes(MOST_BYTES), 413, "--max-audio-bytes"),
}


@pytest.mark.parametrize("case", BAD)
def test_files_that_are_not_recordings_are_refused(http: httpx.Client, case: str) -> None:
    data, status, says = BAD[case]
    answer = transcribe(http, data, "call.mp3")
    error = error_of(answer, status)
    assert (error["type"], error["param"]) == ("invalid_request_error", "file")
    assert says in error["message"]
    assert "/tmp" not in answer.text


def test_silence_is_an_empty_text(http: httpx.Client) -> None:
    answer = transcribe(http, wav(bytes(5 * 32_000)))
    assert answer.status_code == 200
    assert answer.json()["text"] == ""


def warnings_of(answer: httpx.Response, seconds: float) -> list[str]:
    """Return the warnings of a transcript of about this many seconds."""
    assert answer.status_code == 200, answer.text
    page = answer.json()
    assert page["duration"] == pytest.approx(seconds, abs=0.6)
    warnings: list[str] = page.get("warnings", [])
    return warnings


@pytest.mark.parametrize("kind", ["mp3", "ogg", "wav"])
def test_a_recording_cut_in_the_middle_is_transcribed_with_a_warning(
    http: httpx.Client, kind: str, speech: np.ndarray[tuple[int], np.dtype[np.float32]]
) -> None:
    rate = {"mp3": 44_100, "ogg": 48_000, "wav": 16_000}[kind]
    samples = np.interp(np.arange(8 * rate) / rate, np.arange(len(speech)) / 16_000, speech)
    whole = encode(kind, samples.astype(np.float32))
    fields = {"language": "en", "temperature": "0.5", "response_format": "verbose_json"}
    answer = transcribe(http, whole[: len(whole) // 2], f"call.{kind}", **fields)
    [warning] = warnings_of(answer, 4)
    assert f"call.{kind}" in warning
    assert answer.json()["segments"]


def test_a_header_with_a_false_length_is_harmless(http: httpx.Client) -> None:
    answer = transcribe(http, wav(SECOND, announced=10**8), response_format="verbose_json")
    warning, _ = warnings_of(answer, 1)  # the other warning: a tone is not speech
    assert "declares 100000000 bytes of samples, but 32000 follow" in warning


def test_hours_of_silence_in_kilobytes_are_bounded(http: httpx.Client, server: Server) -> None:
    data = flac_of_zeros(1800, stated=0)
    assert len(data) < 1_000_000
    process = psutil.Process(server.process.pid)
    before, began = process.memory_info().rss, time.monotonic()
    error = error_of(transcribe(http, data, "call.flac"), 413)
    assert f"the limit is {MOST_SECONDS} s" in error["message"]
    assert time.monotonic() - began < 20
    assert process.memory_info().rss - before < 100e6


CORPUS = Path(__file__).parents[3] / "fuzz" / "corpus" / "audio"


@pytest.mark.parametrize(
    ("name", "status"), [("aac-7.1", 200), ("ogg-7.1", 200), ("aac-35-channels", 400)]
)
def test_channels_that_ended_the_process(http: httpx.Client, name: str, status: int) -> None:
    """PyAV's own conversion reads past the end of a frame's planes (found by fuzzing)."""
    assert transcribe(http, (CORPUS / name).read_bytes(), name).status_code == status


# Encodings of WAV.

PCM, FLOAT = (
    struct.pack("<IHH", tag, 0, 0x10) + bytes.fromhex("800000aa00389b71") for tag in (1, 3)
)
UNKNOWN = {
    "no-bits": (wav(SECOND, bits=0), "format tag 0x0001, 0 bits"),
    "255-bits": (wav(SECOND, bits=255), "format tag 0x0001, 255 bits"),
    "tag-0": (wav(SECOND, tag=0), "format tag 0x0000"),
    "tag-fffe-without-more": (wav(SECOND, tag=0xFFFE), "format tag 0xfffe"),
    "unknown-subformat": (
        wav(SECOND, tag=0xFFFE, extension=struct.pack("<HHI", 22, 16, 4) + bytes(16)),
        "format tag 0xfffe",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_wav_encodings_are_refused(http: httpx.Client, case: str) -> None:
    data, says = UNKNOWN[case]
    error = error_of(transcribe(http, data))
    assert error["param"] == "file"
    assert says in error["message"]


@pytest.mark.parametrize(("guid", "bits"), [(PCM, 16), (FLOAT, 32)], ids=["pcm", "float"])
def test_the_extensible_header_works(http: httpx.Client, guid: bytes, bits: int) -> None:
    data = wav(
        SECOND if bits == 16 else tone(1, 16_000).tobytes(),
        tag=0xFFFE,
        bits=bits,
        extension=struct.pack("<HHI", 22, bits, 4) + guid,
    )
    [warning] = warnings_of(transcribe(http, data, response_format="verbose_json"), 1)
    assert "no speech was found in 1.0 s" in warning  # and there is no warning about the header
