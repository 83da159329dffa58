"""``usage`` of answers: tokens or seconds of audio, and the request's time and cost."""

from typing import Literal, NotRequired, TypedDict

from galley.gateway.generation import Usage as TokenCounts
from galley.gateway.receipt import Receipt


class PromptTokensDetails(TypedDict):
    """Number of the prompt's tokens that came from the prefix cache."""

    cached_tokens: int


class ReceiptFields(TypedDict, total=False):
    """A request's time in milliseconds and, with `price_per_hour`, its cost in that currency.

    With speculation, it also has the numbers of draft tokens that were verified and accepted.
    """

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    proposed_tokens: int
    accepted_tokens: int
    cost: float


class CompletionTokensDetails(TypedDict):
    """Number of the generated tokens that were reasoning."""

    reasoning_tokens: int


class Usage(ReceiptFields):
    """Token counts of one request, over all choices; the receipt is present once it is complete.

    Completion token details are present where answers are parsed for calls or thinking.
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
    """Return the answer's ``usage``.

    Args:
        counts: the request's token counts.
        receipt: the receipt of a complete request.
    """
    tokens: Usage = {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.generated,
        "total_tokens": counts.prompt + counts.generated,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
    }
    if counts.reasoning is not None:
        tokens["completion_tokens_details"] = {"reasoning_tokens": counts.reasoning}
    return tokens if receipt is None else {**tokens, **receipt_fields(receipt)}


def audio_usage(seconds: float, receipt: Receipt) -> AudioUsage:
    """Return the ``usage`` of a transcript of ``seconds`` of audio."""
    return {"type": "duration", "seconds": round(seconds, 2), **receipt_fields(receipt)}


def receipt_fields(receipt: Receipt) -> ReceiptFields:
    """Return the receipt of a complete request in the form of answers."""
    return receipt.fields()  # type: ignore[return-value]  # its field names are those of the class


class ChunkUsage(TypedDict, total=False):
    """The part of a streamed chunk that reports usage."""

    usage: Usage | None
