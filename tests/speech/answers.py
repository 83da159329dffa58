"""A tiny speech model's description, and outputs in the engine's form."""

from collections.abc import Callable

import msgspec
import numpy as np

from galley.text.tokenizer import Tokenizer
from galley.types import Align, EngineRequest, Output, Tokens, Transcribe
from galley.types.audio import SpeechInfo
from galley.types.model_info import ModelInfo, TextInfo
from tests.speech import tiny
from tests.speech.tiny import token_id

SOT, EOT, EN, DE = (
    token_id(name) for name in ("<|startoftranscript|>", "<|endoftext|>", "<|en|>", "<|de|>")
)
RATE = 16_000

Answer = Callable[[EngineRequest], Output]


def model_info() -> ModelInfo:
    config = tiny.generation_config()
    speech = SpeechInfo(
        mels=tiny.MELS,
        max_frames=100 * tiny.INPUT_SECONDS,
        stride=2,
        start_token=SOT,
        previous_token=config["prev_sot_token_id"],
        no_timestamps_token=config["no_timestamps_token_id"],
        languages=config["lang_to_id"],
        tasks=config["task_to_id"],
        suppress_tokens=tuple(config["suppress_tokens"]),
        begin_suppress_tokens=(EOT,),
        max_initial_timestamp=50,
        alignment_heads=((0, 0),),
    )
    return ModelInfo(
        name="tiny",
        path="",
        family="whisper",
        tasks=speech.tasks_done,
        executor="",
        text=TextInfo(
            vocab_size=2000, max_model_len=64, kv_cache_tokens=4096, eos_token_ids=(EOT,)
        ),
        speech=speech,
    )


def place(request: EngineRequest) -> float:
    """Return where in the recording the chunk starts, in seconds."""
    assert isinstance(request.payload, Transcribe | Align)
    audio = request.payload.encoder_input
    return float(np.frombuffer(audio.data, "<f4")[0]) / RATE


def at(seconds: float) -> int:
    return token_id(f"<|{seconds:.2f}|>")


def says(
    tokenizer: Tokenizer, *parts: str | float, score: float = -0.1, silence: float = 0.0
) -> Output:
    """Return text and timestamps in the engine's form."""
    tokens: list[int] = []
    for part in parts:
        tokens += tokenizer.encode_plain(part) if isinstance(part, str) else [at(part)]
    tokens.append(EOT)
    return Output(
        request_id="",
        result=Tokens(tokens=tokens, scores=[score] * len(tokens), no_speech_prob=silence),
        finish_reason="stop",
    )


def to(request: EngineRequest, output: Output) -> Output:
    return msgspec.structs.replace(output, request_id=request.id)
