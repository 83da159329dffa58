"""Asking the tiny Whisper checkpoints, and what transformers' Whisper answers: for several test modules."""

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import GenerationMixin, LogitsProcessorList, WhisperForConditionalGeneration
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from galley import SamplingParams
from galley.audio import EncoderInput, TimestampRules
from galley.local import LocalEngine
from galley.service.requests import expand
from galley.types import EngineRequest, Output
from tests.checkpoints import EOS_TEXT, WHISPER_GENERATION

Features = npt.NDArray[np.float32]
START, EN, TRANSCRIBE, NO_SPEECH, NO_TIMESTAMPS = 201, 202, 206, 208, 209
PROMPT = [START, EN, TRANSCRIBE, NO_TIMESTAMPS]
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)

RULES = SamplingParams(
    temperature=0.0,
    max_tokens=30,
    suppress_tokens=tuple(WHISPER_GENERATION["suppress_tokens"]),
    begin_suppress_tokens=tuple(WHISPER_GENERATION["begin_suppress_tokens"]),
    timestamps=TimestampRules(begin=NO_TIMESTAMPS + 1, text_end=EOS_TEXT, max_initial=20),
    scores=True,
    no_speech=(0, NO_SPEECH),
)


def truth(folder: Path) -> Any:
    return WhisperForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def random_features(seed: int, mels: int, frames: int) -> Features:
    """As log-mel values are spread."""
    values = np.random.default_rng(seed).uniform(-1.0, 1.5, (frames, mels))
    return values.astype(np.float32)


def window_of(features: Features) -> EncoderInput:
    frames, mels = features.shape
    return EncoderInput(frames=frames, mels=mels, data=features.tobytes())


def ask(
    engine: LocalEngine, features: Features, params: SamplingParams, prompt: list[int] = PROMPT
) -> list[EngineRequest]:
    name = uuid.uuid4().hex
    return expand(prompt, params, engine.info, request_id=name, encoder_input=window_of(features))


def answers(engine: LocalEngine, requests: list[EngineRequest]) -> list[list[Output]]:
    """The outputs of each request."""
    outputs: dict[str, list[Output]] = {request.id: [] for request in requests}
    for output in engine.run(requests):
        outputs[output.request_id].append(output)
    return list(outputs.values())


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def generated(
    model: Any, features: Features, prompt: list[int], timestamps: bool, num_beams: int = 1
) -> Any:
    """By the plain generate of transformers, with the processors that Whisper's own would pick.

    Whisper's own cuts what it generates into segments and asks again for what follows.
    """
    begin, config = len(prompt), model.generation_config
    processors: list[Any] = [
        SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, begin),
        SuppressTokensLogitsProcessor(config.suppress_tokens),
    ]
    if timestamps:
        processors.append(WhisperTimeStampLogitsProcessor(config, begin))
    return GenerationMixin.generate(
        model,
        torch.from_numpy(features.T.copy())[None],
        decoder_input_ids=torch.tensor([prompt]),
        logits_processor=LogitsProcessorList(processors),
        max_new_tokens=RULES.max_tokens,
        do_sample=False,
        num_beams=num_beams,
        return_dict_in_generate=True,
        output_scores=True,
    )
