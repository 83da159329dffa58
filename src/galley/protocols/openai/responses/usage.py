"""``usage`` in OpenAI's Responses API."""

from typing import Literal, TypedDict

from galley.gateway.generation import Generation
from galley.protocols.openai.usage import ReceiptFields, receipt_fields


class InputDetails(TypedDict):
    """The prompt's cached tokens. All computed tokens may be cached, and writes are not charged."""

    cached_tokens: int
    cache_write_tokens: Literal[0]


class OutputDetails(TypedDict):
    """Number of the generated tokens that were reasoning."""

    reasoning_tokens: int


class ResponseUsage(ReceiptFields):
    """Token counts of one request, and its receipt."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


def usage_of(generation: Generation) -> ResponseUsage:
    """Return the counts of a generation, and its receipt."""
    counts = generation.usage()
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
        "output_tokens": counts.generated,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning or 0},
        "total_tokens": counts.prompt + counts.generated,
        **receipt_fields(generation.receipt),
    }
