"""Token times, compared with transformers' functions and with openai/whisper's use of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig, GenerationMixin, WhisperForConditionalGeneration
from transformers.generation import LogitsProcessorList, SuppressTokensLogitsProcessor
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

from galley.llm.local import LocalEngine
from galley.service.speech_requests import align_request
from galley.settings.engine import EngineSettings, ExecutorName
from galley.speech.alignment import _smooth, affinity, first_rows, token_times
from galley.types.audio import Alignment, EncoderInput
from tests.speech import tiny
from tests.speech.tiny import token_id

PROMPT = [
    token_id(f"<|{name}|>") for name in ("startoftranscript", "en", "transcribe", "notimestamps")
]
ROW_SECONDS = 0.02


def warped(matrix: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return where each token starts, by transformers' functions."""
    tokens, rows = _dynamic_time_warping(-matrix.astype(np.float64))
    jumps = np.pad(np.diff(tokens), (1, 0), constant_values=1).astype(bool)
    first: NDArray[np.int64] = rows[jumps]
    return first


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 9), (9, 1), (2, 2), (5, 30), (30, 5), (12, 12), (40, 200)]
)
def test_the_alignment_path_is_transformers(shape: tuple[int, int]) -> None:
    """This includes inputs with several equally good paths."""
    for seed in range(4):
        matrix = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        for belongs in (matrix, np.round(matrix)):
            assert np.array_equal(first_rows(belongs), warped(belongs))


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 7, 8, 100])
def test_the_median_is_transformers(rows: int) -> None:
    values = np.random.default_rng(rows).standard_normal((5, rows)).astype(np.float32)
    expected = _median_filter(torch.from_numpy(values)[None], 7)[0].numpy()
    assert np.array_equal(_smooth(values), expected)


def test_attention_shared_by_all_tokens_is_ignored() -> None:
    weights = np.zeros((3, 2, 20), np.float32)
    assert not affinity(weights).any()
    weights[1, :, 4:12] = 0.1
    assert affinity(weights)[1, 8] == pytest.approx(np.sqrt(2))


def test_token_times_are_those_of_openai_whisper() -> None:
    """The expected times come from ``find_alignment``, line by line."""
    rng = np.random.default_rng(0)
    weights = torch.from_numpy(rng.random((3, 4 + 12 + 1, 200), dtype=np.float32)).softmax(-1)
    data = weights.permute(1, 0, 2).contiguous().numpy().tobytes()
    alignment = Alignment(tokens=17, heads=3, rows=200, data=data)
    got = token_times(alignment, 12, seconds=3.011, row_seconds=ROW_SECONDS)
    weights = weights[:, :, :150]
    std, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    weights = _median_filter((weights - mean) / std, 7)
    matrix = weights.mean(dim=0)[3:-1]
    assert got == pytest.approx(warped(matrix.numpy()) * ROW_SECONDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module", params=["reference", "cpu"])
def engine(folder: Path, request: pytest.FixtureRequest) -> Iterator[LocalEngine]:
    name: ExecutorName = request.param
    settings = EngineSettings(model=str(folder), executor=name, dtype="float32", threads=1)
    with LocalEngine(settings) as engine:
        yield engine


def generated(model: Any, features: NDArray[np.float32], count: int) -> Any:
    """Return ``count`` tokens of text, as transformers generates them."""
    not_text = [i for i in range(model.config.vocab_size) if i >= tiny.TEXT_TOKENS]
    with torch.inference_mode():
        return GenerationMixin.generate(
            model,
            torch.from_numpy(features.T.copy())[None],
            decoder_input_ids=torch.tensor([PROMPT]),
            logits_processor=LogitsProcessorList([SuppressTokensLogitsProcessor(not_text)]),
            generation_config=GenerationConfig(
                max_new_tokens=count,
                do_sample=False,
                return_dict_in_generate=True,
                output_attentions=True,
            ),
        )


@pytest.mark.parametrize("frames", [400, 270])
def test_token_times_are_those_of_transformers(
    frames: int, folder: Path, engine: LocalEngine
) -> None:
    """The text is what transformers generates.

    It judges weights without the prompt's, and uses them one token later.
    """
    model = WhisperForConditionalGeneration.from_pretrained(folder, attn_implementation="eager")
    heads = model.generation_config.alignment_heads
    for seed in range(3):
        values = np.random.default_rng(seed).uniform(-1.0, 1.5, (400, tiny.MELS))
        features = values.astype(np.float32)
        said = generated(model, features, 25)
        times = model._extract_token_timestamps(
            said, heads, num_frames=frames, num_input_ids=len(PROMPT)
        )[0]
        ids = said.sequences[0].tolist()
        encoder_input = EncoderInput(frames=400, mels=tiny.MELS, data=features.tobytes())
        request = align_request(ids, engine.info, request_id="a", encoder_input=encoder_input)
        (output,) = engine.run([request])
        found = output.result
        assert isinstance(found, Alignment)
        weights = np.frombuffer(found.data, "<f4").reshape(found.tokens, found.heads, found.rows)
        rows = first_rows(affinity(weights[len(PROMPT) : -1, :, : frames // 2]))
        got = np.array([*rows, rows[-1]]) * ROW_SECONDS
        assert np.abs(got - times[len(PROMPT) :].numpy()).max() <= ROW_SECONDS + 1e-6
        assert len(set(rows.tolist())) > 5
