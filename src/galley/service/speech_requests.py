"""Converts audio and token ids to the engine requests of a speech model."""

from galley.errors import ContextExceeded, RequestError
from galley.service.requests import check_ids, check_task, each_choice
from galley.types import Align, EngineRequest, SamplingParams, Transcribe
from galley.types.audio import NO_RULES, EncoderInput, SpeechRules
from galley.types.model_info import ModelInfo


def transcribe_requests(
    prompt: list[int],
    params: SamplingParams,
    info: ModelInfo,
    *,
    request_id: str,
    encoder_input: EncoderInput,
    rules: SpeechRules = NO_RULES,
    priority: int = 0,
    cache_salt: str = "",
) -> list[EngineRequest]:
    """Return one engine request for each of ``n`` choices; see :func:`galley.service.requests.expand`.

    Args:
        prompt: token ids.
        params: the parameters as the caller gave them.
        info: the model's description.
        request_id: unique.
        encoder_input: the audio.
        rules: which tokens the transcript may have.
        priority: a lower value is scheduled sooner.
        cache_salt: the tenant's salt.

    Raises:
        RequestError: the model is not a speech model or does not accept such audio, or as in ``expand``.
        ContextExceeded: prompt and ``max_tokens`` do not fit the context.
    """
    _check_audio(encoder_input, info)
    _check_rules(rules, prompt, info)
    return [
        EngineRequest(
            id=f"{request_id}-{choice}",
            payload=Transcribe(
                prompt=prompt, encoder_input=encoder_input, sampling=sampling, rules=rules
            ),
            priority=priority,
            cache_salt=cache_salt,
        )
        for choice, sampling in enumerate(each_choice(prompt, params, info))
    ]


def align_request(
    prompt: list[int],
    info: ModelInfo,
    *,
    request_id: str,
    encoder_input: EncoderInput,
    priority: int = 0,
    cache_salt: str = "",
) -> EngineRequest:
    """Return the request for the attention of the model's alignment heads at each token of a given text.

    Arguments are those of :func:`transcribe_requests`.

    Raises:
        RequestError: the model has no such heads or does not accept such audio, or a token id is outside
            its vocabulary.
        ContextExceeded: the text does not fit the context.
    """
    _check_audio(encoder_input, info)
    check_task(info, "align", param="alignment")
    if not prompt:
        raise RequestError("the prompt is empty; it needs at least one token", param="prompt")
    check_ids("prompt", prompt, info)
    if len(prompt) > info.max_request_tokens:
        raise ContextExceeded(
            f"the prompt has {len(prompt)} tokens; the context is {info.max_request_tokens}",
            param="prompt",
        )
    return EngineRequest(
        id=f"{request_id}-0",
        payload=Align(prompt=prompt, encoder_input=encoder_input),
        priority=priority,
        cache_salt=cache_salt,
    )


def _check_rules(rules: SpeechRules, prompt: list[int], info: ModelInfo) -> None:
    for name in ("suppress_tokens", "begin_suppress_tokens", "allowed_tokens"):
        check_ids(name, getattr(rules, name), info)
    if rules.timestamps is not None:
        check_ids("timestamps", (rules.timestamps.begin,), info)
    if rules.no_speech is None:
        return
    place, token = rules.no_speech
    check_ids("no_speech", (token,), info)
    if not 0 <= place < len(prompt):
        raise RequestError(
            f"no_speech is index {place}, but the prompt has {len(prompt)} tokens",
            param="no_speech",
        )


def _check_audio(encoder_input: EncoderInput, info: ModelInfo) -> None:
    speech = info.speech
    if speech is None:
        wrong = f"{info.name} is a text model and does not accept audio"
    elif encoder_input.mels != speech.mels:
        wrong = (
            f"encoder_input has {encoder_input.mels} values in a frame, "
            f"{info.name} needs {speech.mels}"
        )
    elif encoder_input.frames > speech.max_frames:
        wrong = (
            f"encoder_input has {encoder_input.frames} frames, "
            f"{info.name} accepts at most {speech.max_frames}"
        )
    else:
        return
    raise RequestError(wrong, param="encoder_input")
