"""Every format is decoded in bounded blocks; what cannot be decoded is refused by name."""

import io
import math
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from galley.errors import AudioError, AudioTooLong
from galley.speech.audio import SAMPLE_RATE, RawPcm, Recording
from galley.speech.loudness import normalized
from tests.speech.recordings import CODECS, encode, tone


def read(recording: Recording) -> NDArray[np.float32]:
    return np.concatenate(list(recording))


def loudest(samples: NDArray[np.float32], second: int = 1) -> dict[int, float]:
    """Return the two strongest whole frequencies of one second: Hz -> peak."""
    spectrum = np.abs(np.fft.rfft(samples[second * SAMPLE_RATE :][:SAMPLE_RATE])) / (
        SAMPLE_RATE / 2
    )
    return {int(hertz): float(spectrum[hertz]) for hertz in np.argsort(spectrum)[-2:]}


@pytest.mark.parametrize("kind", CODECS)
def test_every_format_becomes_the_mean_of_its_channels_at_16_khz(kind: str) -> None:
    rate = CODECS[kind][2]
    data = encode(kind, tone(3, rate), tone(3, rate, hertz=1000))
    with Recording(data) as recording:
        blocks = list(recording)
    samples = np.concatenate(blocks)
    assert all(block.dtype == np.float32 and len(block) <= 2 * SAMPLE_RATE for block in blocks)
    assert len(samples) / SAMPLE_RATE == pytest.approx(3.0, abs=0.05)
    assert recording.seconds == len(samples) / SAMPLE_RATE
    assert recording.warnings == []
    assert loudest(samples) == pytest.approx({440: 0.25, 1000: 0.25}, rel=0.06)


@pytest.mark.parametrize("kind", ["wav", "wav-24", "mp3", "ogg", "m4a"])
def test_a_path_an_open_file_and_bytes_are_the_same(kind: str, tmp_path: Path) -> None:
    data = encode(kind, tone(1, CODECS[kind][2]))
    path = tmp_path / "call"
    path.write_bytes(data)
    expected = read(Recording(data))
    with path.open("rb") as file:
        np.testing.assert_array_equal(read(Recording(file)), expected)
        assert not file.closed
    np.testing.assert_array_equal(read(Recording(path)), expected)
    np.testing.assert_array_equal(read(Recording(str(path))), expected)


def test_resampling_keeps_what_fits_and_removes_what_does_not() -> None:
    """Audio at 8 kHz is upsampled; 10 kHz in a 48 kHz file would alias to 6 kHz if not filtered out."""
    up = read(Recording(encode("wav-telephone", tone(3, 8_000))))
    assert loudest(up)[440] == pytest.approx(0.5, rel=0.01)
    down = read(Recording(encode("wav-float", tone(3, 48_000, hertz=10_000))))
    assert np.abs(down[SAMPLE_RATE:-SAMPLE_RATE]).max() < 1e-3


def test_the_rate_is_the_callers_choice() -> None:
    recording = Recording(encode("wav", tone(2, 16_000)), sample_rate=24_000)
    assert len(read(recording)) == 2 * 24_000


@pytest.mark.parametrize("channels", [1, 2, 6])
def test_raw_samples_are_what_the_caller_says(channels: int) -> None:
    wave = tone(2, 8_000)
    raw = np.repeat((wave * 32767).astype("<i2"), channels).tobytes()
    samples = read(Recording(raw, sample_rate=8_000, raw=RawPcm(8_000, channels)))
    np.testing.assert_allclose(samples, wave, atol=1e-4)


def test_raw_telephone_samples() -> None:
    """G.711's law: 0xFF is silence, 0x80 the loudest positive sample (ITU-T G.711, table 2a)."""
    raw = bytes([0xFF, 0x80, 0x00]) * 4000
    samples = read(Recording(raw, sample_rate=8_000, raw=RawPcm(8_000, type="mulaw")))
    np.testing.assert_allclose(samples[:3] * 32768, [0, 32124, -32124], atol=1)


def test_samples_beyond_full_scale_are_clipped() -> None:
    samples = read(Recording(encode("wav-float", tone(1, 48_000, peak=3.0)), sample_rate=48_000))
    assert np.abs(samples).max() == 1.0


def test_loudness_is_evened_out_without_a_sample_more_or_less() -> None:
    quiet, loud = tone(20, SAMPLE_RATE, peak=0.02), tone(20, SAMPLE_RATE, peak=0.5)
    data = encode("wav", np.concatenate([quiet, loud]))
    plain, even = read(Recording(data)), read(Recording(data, normalize=True))
    assert len(even) == len(plain)
    assert np.abs(even).max() <= 1.0
    middle = slice(5 * SAMPLE_RATE, 10 * SAMPLE_RATE)
    assert np.abs(even[middle]).max() > 10 * np.abs(plain[middle]).max()


def test_silence_stays_silent_when_loudness_is_evened_out() -> None:
    silent = [np.zeros(SAMPLE_RATE, np.float32)] * 20
    assert not np.concatenate(list(normalized(silent, SAMPLE_RATE))).any()


# Files that cannot be decoded.


def wav(
    samples: bytes, *, announced: int | None = None, rate: int = 16_000, channels: int = 1
) -> bytes:
    size = len(samples) if announced is None else announced
    form = struct.pack("<HHIIHH", 1, channels, rate, 2 * rate % 2**32, 2, 16)
    return (
        b"RIFF" + struct.pack("<I", 36 + len(samples)) + b"WAVEfmt " + struct.pack("<I", 16) + form
        + b"data" + struct.pack("<I", size) + samples
    )  # fmt: skip


def wav_of(tag: int, bits: int, extension: bytes = b"") -> bytes:
    """Return a second of WAV with the given format tag and sample width."""
    form = struct.pack("<HHIIHH", tag, 1, 16_000, 2000 * bits, bits // 8, bits) + extension
    samples = tone(1, 16_000).tobytes() if bits == 32 else SECOND
    return (
        b"RIFF" + struct.pack("<I", 20 + len(form) + len(samples)) + b"WAVE"
        b"fmt " + struct.pack("<I", len(form)) + form
        + b"data" + struct.pack("<I", len(samples)) + samples
    )  # fmt: skip


SECOND = (tone(1, 16_000) * 32767).astype("<i2").tobytes()

REFUSED = {
    "empty": (b"", "is not audio"),
    "text": (b"Hello, this is no music at all.\n" * 500, "is not audio"),
    "zeros": (bytes(100_000), "is not audio"),
    "header-only": (wav(b""), "without samples"),
    "no-data-chunk": (wav(SECOND).replace(b"data", b"junk"), "without samples"),
    "zero-hertz": (wav(SECOND, rate=0), ""),
    "four-gigahertz": (wav(SECOND, rate=2**32 - 1), ""),
    "one-hertz": (wav(SECOND, rate=1), "at 1 Hz"),
    "no-bits": (wav_of(1, 0), "(WAV format tag 0x0001, 0 bits per sample), which is not"),
    "255-bits": (wav_of(1, 255), "255 bits per sample"),
    "format-0": (wav_of(0, 16), "WAV format tag 0x0000"),
    "format-fffe": (wav_of(0xFFFE, 16), "WAV format tag 0xfffe"),
    "g723": (wav_of(0x42, 16), "the encoding g723_1"),
    "many-channels": (wav(SECOND, channels=60_000), "channels at 16000 Hz"),
    "m4a-cut-off": (encode("m4a", tone(2, 44_100))[:9_000], "is not audio"),
    "playlist": (b"#EXTM3U\n#EXTINF:5,\nfile:///etc/hostname\n", "is not audio"),
    "concat": (b"ffconcat version 1.0\nfile '/etc/hostname'\n", "is not audio"),
    "picture": (b"P6 16 16 255\n" + bytes(768), "is not audio"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_a_recording_is_refused(case: str) -> None:
    data, message = REFUSED[case]
    with pytest.raises(AudioError) as refused:
        read(Recording(data, name="call.wav"))
    assert message in str(refused.value)
    assert "call.wav" in str(refused.value)
    assert refused.value.param == "file"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_samples_that_are_not_numbers_are_refused(value: float) -> None:
    samples = tone(1, 48_000)
    samples[24_000] = value
    with pytest.raises(AudioError, match="not numbers"):
        read(Recording(encode("wav-float", samples)))


def test_a_text_file_called_mp3_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "call.mp3"
    path.write_text("This is not an MP3.\n" * 1000)
    with pytest.raises(AudioError, match=r"call\.mp3 is not audio"):
        read(Recording(path))


def test_a_missing_file_a_folder_and_an_address_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.wav", tmp_path, "http://127.0.0.1:1/call.wav"):
        with pytest.raises(AudioError, match="cannot read"):
            Recording(path)


def test_video_without_sound_is_refused() -> None:
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width = stream.height = 16
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame(16, 16, "yuv420p")))
        container.mux(stream.encode(None))
    with pytest.raises(AudioError, match="no audio stream"):
        Recording(file.getvalue())


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF])
def test_a_header_that_was_never_completed_means_all_that_follows(size: int) -> None:
    samples = read(Recording(wav(SECOND, announced=size)))
    assert len(samples) == pytest.approx(16_000, abs=1)


@pytest.mark.parametrize(("subformat", "bits"), [(1, 16), (3, 32)])
def test_the_extensible_header_is_read(subformat: int, bits: int) -> None:
    """WAVE_FORMAT_EXTENSIBLE: the encoding is a GUID, that of PCM or float."""
    guid = struct.pack("<IHH", subformat, 0, 0x10) + bytes.fromhex("800000aa00389b71")
    data = wav_of(0xFFFE, bits, struct.pack("<HHI", 22, bits, 4) + guid)
    np.testing.assert_allclose(read(Recording(data)), tone(1, 16_000), atol=1e-4)


# Damage that is skipped.


@pytest.mark.parametrize("kind", ["wav", "mp3", "flac", "ogg", "aac", "webm"])
def test_what_is_there_of_a_file_that_was_cut_off_is_read_with_a_warning(kind: str) -> None:
    data = encode(kind, tone(5, CODECS[kind][2]))
    recording = Recording(data[: len(data) // 2], name="call.mp3")
    samples = read(recording)
    assert 1.5 < len(samples) / SAMPLE_RATE < 3
    assert recording.warnings
    assert all("call.mp3" in warning for warning in recording.warnings)


@pytest.mark.parametrize("left", [-1, -400, -2000])
def test_an_ogg_file_must_end_with_the_last_page_of_its_stream(left: int) -> None:
    data = encode("ogg", tone(5, 48_000))
    whole, cut = Recording(data), Recording(data[:left])
    assert len(read(cut)) < len(read(whole))
    assert (whole.warnings, len(cut.warnings)) == ([], 1)


def test_damage_in_the_middle_is_left_out_with_a_warning() -> None:
    data = bytearray(encode("flac", tone(5, 16_000)))
    data[len(data) // 2 : len(data) * 3 // 4] = bytes(len(data) * 3 // 4 - len(data) // 2)
    recording = Recording(bytes(data))
    assert 3 < len(read(recording)) / SAMPLE_RATE < 4
    assert "states 5.0 s" in recording.warnings[-1]


# Bounds.


def test_a_recording_that_states_too_great_a_length_is_refused_before_it_is_decoded() -> None:
    data = encode("flac", np.zeros(60 * 16_000, np.float32))
    with pytest.raises(AudioTooLong, match=r"lasts 60 s; the limit is 30 s"):
        Recording(data, max_seconds=30)


def test_one_that_states_none_is_cut_at_the_limit() -> None:
    """The file holds half an hour of zeros in kilobytes, from an encoder that wrote no length."""
    data = bytearray(encode("flac", np.zeros(1800 * 16_000, np.float32)))
    assert len(data) < 1_000_000
    total_samples = slice(21, 26)  # STREAMINFO's last 36 bits before the checksum (RFC 9639, 8.2)
    data[total_samples] = bytes([data[21] & 0xF0, 0, 0, 0, 0])
    recording = Recording(bytes(data), max_seconds=100)
    assert recording.duration is None
    with pytest.raises(AudioTooLong, match="is too long; the limit is 100 s"):
        read(recording)
    assert recording.seconds < 110


def test_memory_does_not_grow_with_the_length() -> None:
    peaks = []
    for minutes in (1, 5):
        data = encode("flac", np.zeros(minutes * 60 * 16_000, np.float32))
        tracemalloc.start()
        for _ in Recording(data):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1_000_000
