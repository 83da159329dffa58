"""The detector finds the same speech as Silero's own package, in blocks of any size."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import numpy_helper

from galley.errors import RequestError
from galley.speech import vad
from galley.speech.audio import Recording
from galley.speech.chunks import chunk_audio
from galley.speech.options import SpeechOptions
from galley.speech.segmenter import VAD_FRAME, SpeechSegmenter
from galley.speech.vad import Leveled, SpeechDetector
from tests.speech.recordings import CALL

SILERO = [
    (
        SpeechOptions(min_speech_ms=100, min_silence_ms=500, pad_ms=250),
        [(28768, 116640), (162400, 231328), (234080, 287648)],
    ),
    (
        SpeechOptions(min_speech_ms=250, min_silence_ms=100, pad_ms=30),
        [
            (32288, 40928), (43040, 67040), (71200, 113120), (165920, 188384), (192032, 217056),
            (219168, 227808), (237600, 284128),
        ],
    ),
]  # fmt: skip
"""Results of silero-vad 6.2.3's get_speech_timestamps with these options, in samples."""


@pytest.fixture(scope="module")
def detector() -> SpeechDetector:
    return SpeechDetector()


@pytest.fixture(scope="module")
def call() -> NDArray[np.float32]:
    return np.concatenate(list(Recording(CALL)))


@pytest.mark.parametrize(("options", "expected"), SILERO)
def test_speech_is_where_silero_finds_it(
    options: SpeechOptions,
    expected: list[tuple[int, int]],
    detector: SpeechDetector,
    call: NDArray[np.float32],
) -> None:
    stream = detector.stream()
    probabilities = np.concatenate([stream.feed(call), stream.finish()])
    segmenter = SpeechSegmenter(options, limit=10**9, overlap=0)
    segments = segmenter.feed(probabilities) + segmenter.finish(len(call))
    # FFmpeg's Opus decoder may differ in the last bits between versions.
    found = np.array([(segment.start, segment.end) for segment in segments])
    np.testing.assert_allclose(found, expected, atol=VAD_FRAME)


@pytest.mark.parametrize("block", [100, VAD_FRAME, VAD_FRAME + 1, 16_000])
def test_probabilities_do_not_depend_on_the_blocks(
    block: int, detector: SpeechDetector, call: NDArray[np.float32]
) -> None:
    whole, parts = detector.stream(), detector.stream()
    expected = np.concatenate([whole.feed(call), whole.finish()])
    found = [parts.feed(call[first : first + block]) for first in range(0, len(call), block)]
    np.testing.assert_allclose(np.concatenate([*found, parts.finish()]), expected, atol=1e-5)
    assert len(expected) == -(-len(call) // VAD_FRAME)


def test_streams_are_independent(detector: SpeechDetector, call: NDArray[np.float32]) -> None:
    expected = detector.stream().feed(call)
    one, other = detector.stream(), detector.stream()
    found = []
    for first in range(0, len(call), 16_000):
        found.append(one.feed(call[first : first + 16_000]))
        other.feed(call[::-1][first : first + 16_000].copy())
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-5)


def test_silence_and_noise_are_no_speech(detector: SpeechDetector) -> None:
    noise = 0.01 * np.random.default_rng(0).standard_normal(160_000).astype(np.float32)
    for sound in (noise, np.zeros_like(noise)):
        assert list(chunk_audio([sound], 30, SpeechOptions(), detector.stream())) == []


def test_no_samples_are_no_speech(detector: SpeechDetector) -> None:
    stream = detector.stream()
    assert len(stream.feed(np.empty(0, np.float32))) == len(stream.finish()) == 0


def test_a_recording_becomes_chunks_while_it_is_read(detector: SpeechDetector) -> None:
    found = list(
        chunk_audio(
            Recording(CALL), 5.5, SpeechOptions(min_silence_ms=500, pad_ms=250), detector.stream()
        )
    )
    assert [round(len(chunk.samples) / 16_000) for chunk in found] == [5, 5, 3]
    assert sum(len(chunk.samples) for chunk in found) < 14.5 * 16_000  # of 20 s


def test_products_of_matrices_are_the_convolutions_of_the_original(
    call: NDArray[np.float32],
) -> None:
    """The weights of the file, put back into the kernels of Silero's convolutions."""
    model = onnx.load(Path(vad.__file__).parent / "silero" / "silero_vad_16k_sequence.onnx")
    weights = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    frames = np.lib.stride_tricks.sliding_window_view(call, 64 + VAD_FRAME)[
        : 100 * VAD_FRAME : VAD_FRAME
    ]
    padded = np.pad(frames, ((0, 0), (0, 64)), mode="reflect")[:, None]

    def conv(x: torch.Tensor, name: str, stride: int, padding: int = 1) -> torch.Tensor:
        bias = weights[f"{name}.bias"]
        matrix = weights[f"{name}.matrix"]
        kernel = matrix.reshape(-1, x.shape[1], len(bias)).transpose(2, 1, 0).copy()
        summed = torch.conv1d(x, torch.tensor(kernel), torch.tensor(bias), stride, padding)
        return summed.relu()

    basis = torch.tensor(weights["stft.matrix"].T[:, None].copy())
    spectrum = torch.conv1d(torch.tensor(padded), basis, stride=128)
    x = (spectrum[:, :129] ** 2 + spectrum[:, 129:] ** 2).sqrt()
    for number, stride in enumerate((1, 2, 2)):
        x = conv(x, f"encoder.{number}", stride)
    x = conv(x, "encoder.3", 1, padding=0)
    hidden, cell = np.zeros(128), np.zeros(128)
    given, back, bias = (weights[f"lstm{i}"][0] for i in range(3))
    wanted = []
    for row in x[:, :, 0].numpy():
        gates = given @ row + back @ hidden + bias[:512] + bias[512:]
        into, out, keep = (1 / (1 + np.exp(-gates[i : i + 128])) for i in (0, 128, 256))
        cell = keep * cell + into * np.tanh(gates[384:])
        hidden = out * np.tanh(cell)
        logit = np.maximum(hidden, 0) @ weights["output.matrix"][:, 0] + weights["output.bias"][0]
        wanted.append(1 / (1 + np.exp(-logit)))
    got = SpeechDetector().stream().feed(call[64 : 64 + 100 * VAD_FRAME])
    assert len(got) == 100
    # The detector's first frame has no context.
    np.testing.assert_allclose(got[20:], wanted[20:], atol=1e-3)


@pytest.mark.parametrize("decibels", [-20, -40, -50])
def test_quiet_speech_is_found_where_it_is_when_loud(
    decibels: int, detector: SpeechDetector, call: NDArray[np.float32]
) -> None:
    def found(samples: NDArray[np.float32]) -> list[tuple[int, int]]:
        blocks = (samples[first : first + 16_000] for first in range(0, len(samples), 16_000))
        chunks = chunk_audio(blocks, 30, SpeechOptions(), Leveled(detector.stream()), pack=False)
        return [(s.start, s.end) for chunk in chunks for s in chunk.segments]

    loud = found(call)
    quiet = found(call * np.float32(10 ** (decibels / 20)))
    assert len(loud) >= 2
    np.testing.assert_allclose(quiet, loud, atol=10 * VAD_FRAME)


def test_silence_and_faint_noise_are_no_speech(detector: SpeechDetector) -> None:
    noise = np.random.default_rng(0).normal(0, 1e-3, 160_000).astype(np.float32)
    for samples in (np.zeros(160_000, np.float32), noise):
        stream = Leveled(detector.stream())
        assert (stream.feed(samples) < 0.5).all()


def test_padding_before_speech_may_differ_from_padding_after_it(
    detector: SpeechDetector, call: NDArray[np.float32]
) -> None:
    """The padding before a segment starts no earlier than the previous segment's end."""

    def found(options: SpeechOptions) -> list[tuple[int, int, int, int]]:
        chunks = chunk_audio([call], 30, options, detector.stream(), pack=False)
        return [
            (s.start + s.lead, s.end - s.tail, s.lead, s.tail) for c in chunks for s in c.segments
        ]

    plain = found(SpeechOptions(min_silence_ms=200, pad_ms=100))
    longer = found(SpeechOptions(min_silence_ms=200, pad_ms=100, lead_ms=300))
    none = found(SpeechOptions(min_silence_ms=200, pad_ms=100, lead_ms=0))
    assert len(plain) > 3
    for one, other, bare in zip(plain, longer, none, strict=True):
        assert one[:2] == other[:2] == bare[:2]  # the speech is the same
        assert one[2] <= other[2] <= 300 * 16
        assert (bare[2], one[3]) == (0, other[3])
    assert any(lead == 300 * 16 for _, _, lead, _ in longer)


@pytest.mark.parametrize("options", [{"pad_ms": 9_000}, {"lead_ms": 5_000}])
def test_padding_too_long_for_the_model_is_named(
    options: dict[str, int], detector: SpeechDetector
) -> None:
    [name] = options
    speech = SpeechOptions(min_silence_ms=60_000, **options)
    with pytest.raises(RequestError, match="a quarter of the model's longest input") as caught:
        next(chunk_audio([], 15, speech, detector.stream()))
    assert caught.value.param == name
