"""Recordings are decoded in a fork of a separate process, within a budget, and leave nothing behind."""

import gzip
import io
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import SpooledTemporaryFile, TemporaryFile
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from galley.errors import AudioError, AudioTooLong, EngineNotReady, QueueFull, RequestError
from galley.speech.audio import SAMPLE_RATE, RawPcm, Recording
from galley.speech.decode_frames import MOST_BYTES, Block, receive_answer, send
from galley.speech.decoder import Audio, Decoder
from tests.server.serving import until
from tests.speech.hostile_files import TOO_MUCH, mp4
from tests.speech.recordings import CALL, encode, tone

MIB = 2**20


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    running = Decoder(seconds=0.5, max_bytes=128 * MIB)
    yield running
    running.close()


def read(recording: Audio) -> NDArray[np.float32]:
    return np.concatenate(list(recording))


@pytest.mark.parametrize("kind", ["wav-24", "mp3", "ogg", "m4a", "flac"])
def test_a_fork_decodes_the_very_samples(decoder: Decoder, kind: str) -> None:
    data = encode(kind, tone(40, 16_000))
    alone, forked = Recording(data), decoder.open(data)
    np.testing.assert_array_equal(read(forked), read(alone))
    assert (forked.duration, forked.seconds) == (alone.duration, alone.seconds)


def test_arguments_and_warnings_pass_the_wall(decoder: Decoder) -> None:
    raw = (tone(2, 8_000) * 32767).astype("<i2").tobytes()
    arguments: dict[str, Any] = {"raw": RawPcm(8_000), "normalize": True}
    np.testing.assert_array_equal(
        read(decoder.open(raw, **arguments)), read(Recording(raw, **arguments))
    )
    cut = encode("mp3", tone(5, 44_100))[:20_000]
    alone, forked = Recording(cut, name="call"), decoder.open(cut, name="call")
    read(alone), read(forked)
    assert forked.warnings == alone.warnings != []


@contextmanager
def sources(data: bytes, folder: Path) -> Iterator[list[Any]]:
    """Yield all sources of ``data``: a path, bytes and every kind of open file."""
    path, packed = folder / "call", folder / "packed"
    path.write_bytes(data)
    packed.write_bytes(gzip.compress(data))
    with (
        path.open("rb") as buffered,
        path.open("rb", 0) as unbuffered,
        gzip.open(packed) as unpacked,
        SpooledTemporaryFile(len(data) + 1) as in_memory,
        SpooledTemporaryFile(10) as on_disk,
        TemporaryFile() as behind,
    ):
        for file, before in ((in_memory, b""), (on_disk, b""), (behind, b"before")):
            file.write(before + data)
            file.seek(len(before))
        files = [buffered, unbuffered, unpacked, in_memory, on_disk, behind]
        yield [path, str(path), data, io.BytesIO(data), *files]


def test_any_source_is_read_and_files_stay_open_where_they_were(
    decoder: Decoder, tmp_path: Path
) -> None:
    data = encode("flac", tone(1, 16_000))
    expected = read(Recording(data))
    with sources(data, tmp_path) as given:
        for source in given:
            begin = source.tell() if hasattr(source, "tell") else 0
            np.testing.assert_array_equal(read(decoder.open(source)), expected)
            assert not hasattr(source, "tell") or source.tell() == begin


def test_what_cannot_be_opened_is_refused(decoder: Decoder, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none.wav", tmp_path, tmp_path / "pipe", "/dev/null"):
        with pytest.raises(AudioError, match="cannot read"):
            decoder.open(path)


def test_a_path_that_is_no_utf_8(decoder: Decoder, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.flac")
    path.write_bytes(encode("flac", tone(1, 16_000)))
    assert len(read(decoder.open(path))) == SAMPLE_RATE
    path.write_bytes(b"text")
    with pytest.raises(AudioError, match=r"caf\?\.flac is not audio"):
        decoder.open(path)


def test_errors_are_those_of_the_recording(decoder: Decoder) -> None:
    with pytest.raises(AudioError, match="call is not audio"):
        decoder.open(b"text" * 1000, name="call")
    data = encode("flac", tone(3, 16_000))
    with pytest.raises(AudioTooLong, match="lasts 3 s; the limit is 2 s"):
        decoder.open(data, max_seconds=2)
    with pytest.raises(RequestError, match="has 1 audio tracks, got 2") as refused:
        decoder.open(data, track=2)
    assert refused.value.param == "track"


@pytest.mark.parametrize("case", TOO_MUCH)
def test_a_file_that_needs_too_much_is_refused_and_its_memory_freed(
    decoder: Decoder, case: str
) -> None:
    make, says = TOO_MUCH[case]
    read(decoder.open(CALL))
    [worker] = [psutil.Process(pid) for pid in decoder.pids]
    before, own = worker.memory_info().rss, psutil.Process().memory_info().rss
    with pytest.raises(AudioError) as refused:
        for _ in decoder.open(make(), name="call"):
            pass
    assert says in str(refused.value)
    assert refused.value.param == "file"
    until(lambda: not worker.children())
    assert worker.memory_info().rss < before + 4 * MIB
    assert psutil.Process().memory_info().rss < own + 32 * MIB


def test_a_file_of_many_tracks_is_read_and_its_memory_freed(decoder: Decoder) -> None:
    assert len(read(decoder.open(mp4(3)))) == 8_000
    [worker] = [psutil.Process(pid) for pid in decoder.pids]
    before = worker.memory_info().rss
    assert len(read(decoder.open(mp4(900)))) == 8_000
    until(lambda: not worker.children())
    assert worker.memory_info().rss < before + 4 * MIB


def test_long_audio_earns_its_time() -> None:
    """The recording needs more than the initial grant."""
    long = np.zeros(800 * SAMPLE_RATE, np.float32)
    with Decoder(seconds=0.1) as short:
        assert sum(map(len, short.open(encode("flac", long)))) == len(long)


def test_a_recording_that_is_closed_early_ends_its_fork(decoder: Decoder) -> None:
    recording = decoder.open(encode("flac", tone(300, 16_000)))
    blocks = iter(recording)
    next(blocks)
    [worker] = [psutil.Process(pid) for pid in decoder.pids]
    assert len(worker.children()) == 1
    recording.close()
    until(lambda: not worker.children())


def test_a_fork_waits_while_its_samples_are_not_read(decoder: Decoder) -> None:
    """The socket bounds what is decoded ahead, whatever the recording's length."""
    recording = decoder.open(encode("flac", np.zeros(100 * SAMPLE_RATE, np.float32)))
    [worker] = [psutil.Process(pid) for pid in decoder.pids]
    [fork] = worker.children()
    until(lambda: fork.status() == psutil.STATUS_SLEEPING)
    assert fork.memory_info().rss < worker.memory_info().rss + 32 * MIB
    assert len(read(recording)) == 100 * SAMPLE_RATE


@pytest.mark.parametrize(
    ("number", "error", "says"),
    [
        (signal.SIGKILL, EngineNotReady, "was killed"),
        (signal.SIGSEGV, AudioError, "call cannot be decoded: it crashes the decoder"),
        (signal.SIGPROF, AudioError, "call takes too long to decode"),
    ],
)
def test_a_fork_that_dies_fails_its_own_recording_alone(
    decoder: Decoder, number: int, error: type[Exception], says: str
) -> None:
    data = encode("flac", tone(100, 16_000))
    dying, other = decoder.open(data, name="call"), decoder.open(data)
    [worker] = [psutil.Process(pid) for pid in decoder.pids]
    first, _ = sorted(worker.children(), key=lambda fork: fork.pid)
    first.send_signal(number)
    with pytest.raises(error, match=says):
        read(dying)
    assert len(read(other)) == 100 * SAMPLE_RATE


def test_recordings_that_are_open_are_bounded_together() -> None:
    data = encode("flac", tone(100, 16_000))
    with Decoder(most=2) as decoder:
        first, second = decoder.open(data), decoder.open(data)
        with pytest.raises(QueueFull, match="2 recordings, the maximum, are being decoded"):
            decoder.open(data)
        first.close()
        first.close()
        with pytest.raises(AudioError):
            decoder.open(b"no recording")
        third = decoder.open(data)
        assert len(read(second)) == len(read(third)) == 100 * SAMPLE_RATE
        assert decoder.open(data).duration == 100


def test_a_decoder_that_was_killed_is_replaced() -> None:
    with Decoder() as decoder:
        under_way = decoder.open(encode("flac", tone(100, 16_000)))
        [pid] = decoder.pids
        forks = psutil.Process(pid).children()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineNotReady):
            read(under_way)
        assert len(read(decoder.open(CALL))) > SAMPLE_RATE
        assert decoder.pids != [pid]
        until(lambda: not any(fork.is_running() for fork in forks))


def test_nothing_is_left_of_a_closed_decoder() -> None:
    before = psutil.Process().num_fds()
    decoder = Decoder()
    recording = decoder.open(encode("flac", tone(100, 16_000)))
    [pid] = decoder.pids
    processes = [psutil.Process(pid), *psutil.Process(pid).children()]
    assert len(processes) == 2
    decoder.close()
    decoder.close()
    recording.close()
    until(lambda: not any(process.is_running() for process in processes))
    assert psutil.Process().num_fds() == before
    with pytest.raises(EngineNotReady, match="closed"):
        decoder.open(CALL)


@pytest.mark.parametrize("kept", [1, 4, 1_000])
def test_half_a_message_counts_as_none(kept: int) -> None:
    whole, other = socket.socketpair()
    with whole, other:
        send(whole, Block(bytes(4_000)))
        encoded = other.recv(8_000)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(encoded + encoded[:kept])
        assert receive_answer(ours) == Block(bytes(4_000))
        assert receive_answer(ours) is None


def test_the_length_of_a_message_is_bounded() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((MOST_BYTES + 1).to_bytes(4, "little"))
        with pytest.raises(msgspec.DecodeError, match="131073 bytes"):
            receive_answer(ours)
