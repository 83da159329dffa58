"""Whether a speaker's turn is over, by the language model's own probability.

The model reads the conversation up to the last word that was said, without what ends a message in its
chat template. How likely it thinks that end is the probability that the turn is over: a model that was
trained on whole conversations knows how people's sentences end. Where the prompt is a prefix of the one
that will be answered, its keys and values are in the prefix cache when the answer begins.
"""

import math
from typing import Final

import msgspec

from galley.errors import GalleyError, RequestError
from galley.gateway.call import Call, opened
from galley.gateway.caller import Caller
from galley.gateway.chat import last_turns, prompt_of
from galley.gateway.served import ServedModel
from galley.service.requests import expand
from galley.tools.conversation import Conversation
from galley.types import LIVE_PRIORITY, SamplingParams

_ALTERNATIVES: Final = 20
"""Likeliest tokens that are searched for the end of the message."""

_PARAMS: Final = SamplingParams(max_tokens=1, temperature=0.0, logprobs=_ALTERNATIVES)


class UnmarkedEnd(RequestError):
    """The model's chat template writes nothing after a message whose probability could be read."""


async def turn_end(
    served: ServedModel, endpoint: str, caller: Caller, conversation: Conversation
) -> float:
    """Return the probability that the conversation's last message ends where it does, from 0 to 1.

    Where the end is not among the likeliest tokens, the value is the least likely one's: an upper bound.

    Args:
        served: the language model.
        endpoint: the route, for metrics.
        caller: who speaks, with a record of its own.
        conversation: the messages; the last one is the speaker's.

    Raises:
        UnmarkedEnd: the model's chat template writes nothing after a message.
        RequestError: the model's chat template or engine does not support it.
        Unavailable: the engine is not ready, or the queue is full.
        EngineError: the engine failed.
    """
    call = Call(served, endpoint, caller)
    with opened(call):
        share, most = caller.share, call.info.max_request_tokens - 1
        part, closed = await last_turns(call.backend, conversation, share, most)
        open_ended = msgspec.structs.replace(part, continues=True)
        prompt = await prompt_of(call.backend, open_ended, share)
    try:
        return await _probability(call, prompt, closed)
    finally:
        call.close()


async def _probability(call: Call, prompt: list[int], closed: list[int]) -> float:
    """Return the probability of the message's end, where ``closed`` continues after ``prompt``.

    If the tokenizer joins the message's last characters with what the template writes after them, the
    question is which of the two tokens follows: the one that ends the message, or the one that does not.
    """
    pairs = enumerate(zip(prompt, closed, strict=False))
    shared = next((n for n, (a, b) in pairs if a != b), min(len(prompt), len(closed)))
    if shared in (0, len(closed)):
        raise UnmarkedEnd("the model's chat template does not end a message after its text")
    end, rest = closed[shared], prompt[shared:]
    requests = expand(
        prompt[:shared],
        _PARAMS,
        call.info,
        request_id=call.caller.request_id,
        priority=LIVE_PRIORITY,
        cache_salt=call.caller.cache_salt(),
    )
    [stream] = call.submit_all(requests)
    call.prompts_taken(shared)
    async for output in stream:
        logprobs = output.generated.logprobs
        if logprobs:
            top, least = dict(logprobs[0].top), logprobs[0].top[-1][1]
            ends = math.exp(min(0.0, top.get(end, least)))
            if not rest:
                return ends
            return ends / (ends + math.exp(min(0.0, top.get(rest[0], least))))
    raise GalleyError("the language model returned no probabilities")
