"""Validates a prompt and its parameters, and converts them to engine requests."""

import secrets
from collections.abc import Collection
from hashlib import blake2b
from typing import Final

import msgspec

from galley.errors import ContextExceeded, RequestError
from galley.types import EngineRequest, Generate, SamplingDefaults, SamplingParams, Task
from galley.types.model_info import CACHE_SALT, ModelInfo

_NOT_WITH_BEAMS: Final = (
    "temperature",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "min_tokens",
    "n",
    "logprobs",
    "prompt_logprobs",
)

_UNSET: Final = SamplingParams()
_NEUTRAL: Final = _UNSET.resolved(SamplingDefaults())
"""Values without effect, which every runtime honors."""


def expand(
    prompt: list[int],
    params: SamplingParams,
    info: ModelInfo,
    *,
    request_id: str,
    priority: int = 0,
    cache_salt: str = "",
    prompt_param: str = "prompt",
    context: int | None = None,
) -> list[EngineRequest]:
    """Return one engine request for each of ``n`` choices, with every default filled in.

    Choice i has the id ``{request_id}-{i}`` and a separate seed, derived from the request's seed. If the
    request has none, its seed is drawn here, so that a resubmitted request continues as it began. Only
    the first choice scores the prompt.

    Args:
        prompt: token ids.
        params: the parameters as the caller gave them.
        info: the model's description.
        request_id: unique.
        priority: a lower value is scheduled sooner.
        cache_salt: the tenant's salt.
        prompt_param: the field to name when the prompt itself is wrong.
        context: the most tokens of prompt and output together, if less than the model's context.

    Raises:
        RequestError: a token id is out of range, the prompt is empty, or the model does not support the
            request.
        ContextExceeded: prompt and ``max_tokens`` do not fit the context.
    """
    if info.vectors is not None:
        check_task(info, "generate")
    if info.speech is not None:
        raise RequestError(
            f"{info.name} is a speech model: each request needs audio in encoder_input",
            param="encoder_input",
        )
    return [
        EngineRequest(
            id=f"{request_id}-{choice}",
            payload=Generate(prompt=prompt, sampling=sampling),
            priority=priority,
            cache_salt=cache_salt,
        )
        for choice, sampling in enumerate(
            each_choice(prompt, params, info, prompt_param=prompt_param, context=context)
        )
    ]


def each_choice(
    prompt: list[int],
    params: SamplingParams,
    info: ModelInfo,
    *,
    prompt_param: str = "prompt",
    context: int | None = None,
) -> list[SamplingParams]:
    """Return the resolved parameters of each choice, with the arguments and errors of :func:`expand`."""
    _check_supported(params, info)
    if params.prompt_logprobs is not None:
        check_task(info, "score", param="prompt_logprobs")
    if not prompt:
        raise RequestError("the prompt is empty; it needs at least one token", param=prompt_param)
    _check_ids(prompt, params, info, prompt_param)
    text = info.require_text()
    resolved = params.resolved(text.defaults)
    _check_beams(resolved, info)
    if params.grammar is not None and not text.grammars:
        raise RequestError(f"{info.name} does not support grammars", param="grammar")
    limit = info.max_beam_tokens(params.num_beams)
    limit = limit if context is None else min(limit, context)
    max_tokens = _max_tokens(
        len(prompt), params, limit, prompt_param, default=text.defaults.max_tokens
    )
    seed = secrets.randbits(64) if params.seed is None else params.seed & (2**64 - 1)
    return [
        msgspec.structs.replace(
            resolved,
            max_tokens=max_tokens,
            seed=choice_seed(seed, choice),
            n=1,
            # Only the first choice scores the prompt; the others share its KV blocks.
            prompt_logprobs=resolved.prompt_logprobs if choice == 0 else None,
        )
        for choice in range(params.n)
    ]


def choice_seed(seed: int, choice: int) -> int:
    """Return the 64-bit seed of one of ``n`` choices; the first uses the request's own seed."""
    if choice == 0:
        return seed
    digest = blake2b(seed.to_bytes(8, "little") + choice.to_bytes(4, "little"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def check_ids(name: str, ids: Collection[int], info: ModelInfo) -> None:
    """Raise RequestError, naming the field ``name``, for an id outside the model's vocabulary."""
    low, high = min(ids, default=0), max(ids, default=0)
    vocab_size = info.require_text().vocab_size
    if low < 0 or high >= vocab_size:
        raise RequestError(
            f"{name} contains token id {low if low < 0 else high}; "
            f"ids run from 0 to {vocab_size - 1}",
            param=name,
        )


def _check_ids(
    prompt: list[int], params: SamplingParams, info: ModelInfo, prompt_param: str
) -> None:
    check_ids(prompt_param, prompt, info)
    check_ids("logit_bias", params.logit_bias, info)
    check_ids("stop_token_ids", params.stop_token_ids, info)
    if params.min_tokens and len(set(params.stop_token_ids)) >= info.require_text().vocab_size:
        raise RequestError(
            "stop_token_ids contains every token, so min_tokens leaves none to start with",
            param="stop_token_ids",
        )


def _check_supported(params: SamplingParams, info: ModelInfo) -> None:
    """Raise RequestError for a parameter that the model's runtime does not honor."""
    for name in info.require_text().unsupported:
        if name == CACHE_SALT:
            continue
        value = getattr(params, name)
        if value not in (getattr(_UNSET, name), getattr(_NEUTRAL, name)):
            given = "" if isinstance(value, msgspec.Struct) else f" ({value!r})"
            raise RequestError(
                f"engine {info.executor} does not support {name}{given}: leave it out, or serve the model "
                "with another engine",
                param=name,
            )


def check_cache_salt(info: ModelInfo) -> None:
    """Raise RequestError if the model's runtime shares cached prefixes whatever a request's salt is."""
    if CACHE_SALT in info.require_text().unsupported:
        raise RequestError(
            f"engine {info.executor} does not support cache_salt, because all requests share its prefix "
            "cache: leave it out, or serve the model without prefix_caching",
            param=CACHE_SALT,
        )


def check_task(info: ModelInfo, task: Task, *, param: str = "model") -> None:
    """Raise RequestError, naming ``param``, if the model does not support ``task``."""
    if task not in info.tasks:
        raise RequestError(
            f"{info.name} cannot {task}; it can {', '.join(info.tasks)}", param=param
        )


def _check_beams(params: SamplingParams, info: ModelInfo) -> None:
    """Raise RequestError for a setting that a beam search cannot honor.

    A beam search ranks whole texts by the model's own probabilities.
    """
    if params.num_beams == 1:
        return
    if info.require_text().recurrent:
        raise RequestError(
            f"num_beams is {params.num_beams}, but {info.name} has recurrent layers, whose states beam "
            "search cannot fork; leave it out",
            param="num_beams",
        )
    alone = SamplingParams(temperature=0.0).resolved(SamplingDefaults())
    for name in _NOT_WITH_BEAMS:
        if getattr(params, name) != getattr(alone, name):
            raise RequestError(
                f"{name} is {getattr(params, name)!r}, which beam search does not support; with num_beams "
                f"above 1 it must be {getattr(alone, name)!r}",
                param=name,
            )


def _max_tokens(
    length: int, params: SamplingParams, limit: int, prompt_param: str, *, default: int | None
) -> int:
    # The last generated token needs a position, but no space for keys and values.
    wants_output = params.max_tokens is None or params.max_tokens > 0
    if length + wants_output > limit:
        raise ContextExceeded(
            f"the prompt has {length} tokens; the context is {limit}, output included",
            param=prompt_param,
        )
    room = limit - length
    if params.max_tokens is None:
        if params.min_tokens > room:
            raise ContextExceeded(
                f"min_tokens {params.min_tokens} and a prompt of {length} tokens exceed the "
                f"context of {limit} tokens",
                param="min_tokens",
            )
        return room if default is None else min(room, max(default, params.min_tokens))
    if params.max_tokens > room:
        raise ContextExceeded(
            f"max_tokens {params.max_tokens} and a prompt of {length} tokens exceed the "
            f"context of {limit} tokens",
            param="max_tokens",
        )
    return params.max_tokens
