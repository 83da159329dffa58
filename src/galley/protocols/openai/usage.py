"""``usage`` of answers: tokens or seconds of audio, and what the request took."""

from typing import Literal, NotRequired, TypedDict

from galley.gateway.generation import Usage as TokenCounts
from galley.gateway.receipt import Receipt


class PromptTokensDetails(TypedDict):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class ReceiptFields(TypedDict, total=False):
    """What a request took: milliseconds, and with `price_per_hour` its cost in that currency.

    Where tokens were guessed also how many guesses were verified, and how many of them were right.
    """

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    proposed_tokens: int
    accepted_tokens: int
    cost: float


class CompletionTokensDetails(TypedDict):
    """What the generated tokens were."""

    reasoning_tokens: int


class Usage(ReceiptFields):
    """Tokens of one request, all choices together; the receipt is there when it is complete.

    The details of completion tokens are told where answers are searched for calls or thinking.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[CompletionTokensDetails]


class AudioUsage(ReceiptFields):
    """Seconds of audio of one request, and its receipt."""

    type: Literal["duration"]
    seconds: float


def usage(counts: TokenCounts, receipt: Receipt | None = None) -> Usage:
    """The answer's ``usage``. ``receipt``: of a request that is complete."""
    tokens: Usage = {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.generated,
        "total_tokens": counts.prompt + counts.generated,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
    }
    if counts.reasoning is not None:
        tokens["completion_tokens_details"] = {"reasoning_tokens": counts.reasoning}
    return tokens if receipt is None else {**tokens, **told_receipt(receipt)}


def audio_usage(seconds: float, receipt: Receipt) -> AudioUsage:
    """The ``usage`` of a transcript."""
    return {"type": "duration", "seconds": round(seconds, 2), **told_receipt(receipt)}


def told_receipt(receipt: Receipt) -> ReceiptFields:
    """The receipt of a complete request, as answers tell it."""
    return receipt.fields()  # type: ignore[return-value]  # its names are those of the class


class ChunkUsage(TypedDict, total=False):
    """The part of a streamed chunk that says what it took."""

    usage: Usage | None
