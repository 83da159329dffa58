"""Requests to the tiny Whisper checkpoints, and the answers of transformers' Whisper, for several tests."""

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import GenerationMixin, LogitsProcessorList, WhisperForConditionalGeneration
from transformers.generation.logits_process import (
    LogitNormalization,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from galley import SamplingParams
from galley.engine.read_model import read_model
from galley.llm.local import LocalEngine
from galley.ops.batch import Batch, CrossContext, EncoderBatch
from galley.ops.choice import executor_factory
from galley.ops.executor import Executor, encode, forward
from galley.service.speech_requests import align_request, transcribe_requests
from galley.settings.engine import DType, EngineSettings, ExecutorName, WeightDType
from galley.types import EngineRequest, Output, blocks_for
from galley.types.audio import NO_RULES, EncoderInput, SpeechInfo, SpeechRules, TimestampRules
from tests.checkpoints import (
    EOS_TEXT,
    VOCAB_SIZE,
    WHISPER_GENERATION,
)

Features = npt.NDArray[np.float32]
START, EN, TRANSCRIBE, NO_SPEECH, NO_TIMESTAMPS = 201, 202, 206, 208, 209
PROMPT = [START, EN, TRANSCRIBE, NO_TIMESTAMPS]
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)

RULED = SamplingParams(temperature=0.0, max_tokens=30, scores=True)
"""Used together with RULES."""

RULES = SpeechRules(
    suppress_tokens=tuple(WHISPER_GENERATION["suppress_tokens"]),
    begin_suppress_tokens=tuple(WHISPER_GENERATION["begin_suppress_tokens"]),
    timestamps=TimestampRules(begin=NO_TIMESTAMPS + 1, text_end=EOS_TEXT, max_initial=20),
    no_speech=(0, NO_SPEECH),
)


def truth(folder: Path) -> Any:
    return WhisperForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def random_features(seed: int, mels: int, frames: int) -> Features:
    """Return random features with the spread of log-mel values."""
    values = np.random.default_rng(seed).uniform(-1.0, 1.5, (frames, mels))
    return values.astype(np.float32)


def window_of(features: Features) -> EncoderInput:
    frames, mels = features.shape
    return EncoderInput(frames=frames, mels=mels, data=features.tobytes())


def ask(
    engine: LocalEngine,
    features: Features,
    params: SamplingParams,
    prompt: list[int] = PROMPT,
    rules: SpeechRules = NO_RULES,
) -> list[EngineRequest]:
    return transcribe_requests(
        prompt,
        params,
        engine.info,
        request_id=uuid.uuid4().hex,
        encoder_input=window_of(features),
        rules=rules,
    )


def ask_alignment(engine: LocalEngine, features: Features, prompt: list[int]) -> EngineRequest:
    name, window = uuid.uuid4().hex, window_of(features)
    return align_request(prompt, engine.info, request_id=name, encoder_input=window)


def answers(engine: LocalEngine, requests: list[EngineRequest]) -> list[list[Output]]:
    """Return the outputs of each request."""
    outputs: dict[str, list[Output]] = {request.id: [] for request in requests}
    for output in engine.run(requests):
        outputs[output.request_id].append(output)
    return list(outputs.values())


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def generated(
    model: Any, features: Features, prompt: list[int], timestamps: bool, num_beams: int = 1
) -> Any:
    """Generate with transformers' plain generate, and the processors that Whisper's own would use.

    Whisper's own generate splits the text into segments and continues after each of them.
    """
    begin, config = len(prompt), model.generation_config
    processors: list[Any] = [
        SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, begin),
        SuppressTokensLogitsProcessor(config.suppress_tokens),
    ]
    if timestamps:
        processors.append(WhisperTimeStampLogitsProcessor(config, begin))
    if num_beams > 1:  # as in openai/whisper: log-probabilities after the rules
        processors.append(LogitNormalization())
    return GenerationMixin.generate(
        model,
        torch.from_numpy(features.T.copy())[None],
        decoder_input_ids=torch.tensor([prompt]),
        logits_processor=LogitsProcessorList(processors),
        max_new_tokens=RULED.max_tokens,
        do_sample=False,
        num_beams=num_beams,
        return_dict_in_generate=True,
        output_scores=True,
    )


EXECUTORS: tuple[ExecutorName, ...] = ("reference", "cpu")
WINDOW_BLOCKS = 20


def encoded(model: Any, features: Features) -> torch.Tensor:
    """Return transformers' encoder states of a window that may be shorter than the model's."""
    encoder = model.model.encoder
    positions = encoder.embed_positions.weight[: -(-len(features) // 2)]
    with torch.inference_mode():
        x = torch.from_numpy(features.T.copy())[None]
        x = torch.nn.functional.gelu(encoder.conv1(x))
        x = torch.nn.functional.gelu(encoder.conv2(x)).permute(0, 2, 1) + positions
        for layer in encoder.layers:
            x = layer(x, None)
        result: torch.Tensor = encoder.layer_norm(x)
    return result


def executor_of(
    folder: Path,
    dtype: DType = "float32",
    name: ExecutorName = "reference",
    weight_dtype: WeightDType = "auto",
) -> Executor:
    settings = EngineSettings(
        model=str(folder), dtype=dtype, weight_dtype=weight_dtype, executor=name, threads=1
    )
    model = read_model(settings, folder)
    executor = executor_factory(name)(model.program, model.weights, model.options)
    executor.allocate_kv(256)
    return executor


def run(
    executor: Executor,
    windows: list[Features],
    prompts: list[list[int]],
    *,
    first_block: int = 0,
    call: Callable[[Batch], npt.NDArray[np.float32]] | None = None,
) -> npt.NDArray[np.float32]:
    """Return all logits of all prompts, prompt i over window i, in one batch; or the result of ``call``."""
    rows = [-(-len(window) // 2) for window in windows]
    crosses = tuple(
        np.arange(first_block + i * WINDOW_BLOCKS, first_block + i * WINDOW_BLOCKS + blocks_for(n))
        for i, n in enumerate(rows)
    )
    encode(
        executor, EncoderBatch(np.concatenate(windows), np.cumsum([0, *map(len, windows)]), crosses)
    )
    starts = np.cumsum([0, *map(len, prompts)])
    tables = (
        np.arange(200 + 8 * i, 200 + 8 * i + blocks_for(len(p))) for i, p in enumerate(prompts)
    )
    return (call or partial(forward, executor))(
        Batch(
            tokens=np.concatenate(prompts),
            positions=np.concatenate([np.arange(len(p)) for p in prompts]),
            starts=starts,
            tables=tuple(tables),
            wanted=np.arange(starts[-1]),
            cross=CrossContext(crosses, np.array(rows)),
        )
    ).copy()


def random_ids(seed: int, length: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, VOCAB_SIZE, length).tolist()
    return ids


def greedy(model: Any, features: Features, prompt: list[int], count: int) -> list[int]:
    """Generate plainly, without Whisper's own generate and its rules."""
    states = encoded(model, features)
    ids = list(prompt)
    for _ in range(count):
        with torch.inference_mode():
            logits = model(encoder_outputs=(states,), decoder_input_ids=torch.tensor([ids])).logits
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


def speech_info(engine: LocalEngine) -> SpeechInfo:
    assert engine.info.speech is not None
    return engine.info.speech


def check_alignment(
    model: Any,
    windows: Sequence[Any],
    prompts: Sequence[list[int]],
    got: npt.NDArray[np.float32],
    heads: Sequence[Sequence[int]],
) -> None:
    """Assert that heads look where those of transformers do.

    Args:
        model: of transformers.
        windows: features of each window.
        prompts: tokens for each window.
        got: [tokens of all prompts, heads, rows] weights.
        heads: layer and number of each.
    """
    ends = np.cumsum([len(ids) for ids in prompts])[:-1]
    for window, ids, rows in zip(windows, prompts, np.split(got, ends), strict=True):
        states = encoded(model, window)
        with torch.inference_mode():
            out = model(
                encoder_outputs=(states,),
                decoder_input_ids=torch.tensor([ids]),
                output_attentions=True,
            )
        length = states.shape[1]
        for place, (layer, head) in enumerate(heads):
            expected = out.cross_attentions[layer][0, head].numpy()
            assert np.abs(rows[:, place, :length] - expected).max() <= 1e-4
        assert not rows[:, :, length:].any()
