"""Types shared by every package: requests to the engine and the outputs it returns.

These structs cross the process boundary as msgpack (see ``service/frames.py``), so they hold plain
values only: no tensors, no callables.
"""

from galley.types.outputs import (
    Audio,
    FinishReason,
    Output,
    Result,
    Tensors,
    Timing,
    TokenLogprob,
    Tokens,
    Vector,
)
from galley.types.requests import (
    LIVE_PRIORITY,
    Adapter,
    Align,
    Decoded,
    Embed,
    EngineRequest,
    Generate,
    Payload,
    Predict,
    Speak,
    Task,
    Transcribe,
    Written,
)
from galley.types.sampling import (
    MAX_BEAMS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    Grammar,
    SamplingDefaults,
    SamplingParams,
    ThinkingBudget,
)
from galley.types.sizes import (
    BLOCK_TOKENS,
    MAX_COUNT,
    OnPhase,
    blocks_for,
)
from galley.types.tensors import Datatype, Tensor, TensorSpec

__all__ = [
    "Audio",
    "Align",
    "Decoded",
    "Transcribe",
    "Written",
    "Adapter",
    "BLOCK_TOKENS",
    "Datatype",
    "Embed",
    "EngineRequest",
    "FinishReason",
    "Generate",
    "Grammar",
    "LIVE_PRIORITY",
    "MAX_BEAMS",
    "MAX_COUNT",
    "MAX_LOGIT_BIAS",
    "MAX_LOGPROBS",
    "MAX_N",
    "MAX_STOP_CHARS",
    "MAX_STOP_STRINGS",
    "OnPhase",
    "Output",
    "Payload",
    "Predict",
    "Result",
    "SamplingDefaults",
    "SamplingParams",
    "Speak",
    "Task",
    "Tensor",
    "TensorSpec",
    "Tensors",
    "ThinkingBudget",
    "Timing",
    "TokenLogprob",
    "Tokens",
    "Vector",
    "blocks_for",
]
