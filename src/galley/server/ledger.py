"""The memory ledger, as ``galley serve`` prints it before a model's weights are loaded."""

from collections.abc import Iterable
from typing import Final

from galley.machine import bytes_text, disk_read_text
from galley.types.model_info import Ledger

_MEASURED_WITH: Final = "SmolLM2-135M-Instruct"
_MEASURED: Final = {"int8": 1.5, "bfloat16": 0.6}
"""Type of inputs -> percentage of positions at which rounding changed that model's likeliest token.

``docs/operations/quality.md`` has the whole table.
"""


def ledger_lines(model: str, ledger: Ledger) -> list[str]:
    """Return lines with the loaded model, how it runs, its memory, and how many requests fit."""
    if not ledger.max_model_len:
        return _of_tensors(model, ledger)
    if not ledger.parameters:
        return _of_library(model, ledger)
    kernels = f" ({ledger.isa})" if ledger.isa else ""
    rows = [
        ("weights", ledger.weights, f"{ledger.weight_dtype}, multiplied with {ledger.inputs}"),
        *_expert_row(ledger),
        *_kv_row(ledger),
        *_state_row(ledger),
        *([("adapters", ledger.adapters, "when all slots are taken")] if ledger.adapters else ()),
        ("buffers", ledger.buffers, f"{ledger.step_tokens} tokens a step"),
        ("reserve", ledger.reserve, "the server and its text workers"),
        ("total", ledger.total, f"of {bytes_text(ledger.available)} available"),
        *_rank_row(ledger),
    ]
    fitting = ", ".join(f"{count} of {tokens:,} tokens" for tokens, count in ledger.requests)
    return [
        f"{model}: {ledger.family}, {ledger.parameters / 1e6:,.1f} million parameters, context "
        f"{ledger.max_model_len:,} tokens",
        f"  runs on    {ledger.device}, executor {ledger.executor}{kernels}, {_threads(ledger)}",
        *_lines(rows),
        f"  inputs     {_inputs(model, ledger)}",
        f"  requests   {fitting}, at a time",
    ]


def _of_tensors(model: str, ledger: Ledger) -> list[str]:
    """Return the lines of a tensor model, whose memory was measured."""
    rows = [
        ("weights", ledger.weights, "measured"),
        ("buffers", ledger.buffers, "measured with a few rows"),
        ("reserve", ledger.reserve, "the server and unread answers"),
        ("total", ledger.total, f"of {bytes_text(ledger.available)} available"),
    ]
    return [
        f"{model}: {ledger.family}, batches of up to {ledger.step_tokens:,} rows",
        f"  runs on    {ledger.device}, executor {ledger.executor}, {_count(ledger.threads)}",
        *_lines(rows),
    ]


def _of_library(model: str, ledger: Ledger) -> list[str]:
    """Return the lines of a language model that another library runs, whose memory was measured."""
    step = f"{ledger.step_tokens:,} tokens a step, " if ledger.step_tokens else ""
    rows = [
        ("weights", ledger.weights, "at least, by the files"),
        *_kv_row(ledger),
        ("buffers", ledger.buffers, f"{step}measured when loaded, with the library's code"),
        ("reserve", ledger.reserve, "the server and its text workers"),
        ("total", ledger.total, f"of {bytes_text(ledger.available)} available"),
    ]
    return [
        f"{model}: {ledger.family}, context {ledger.max_model_len:,} tokens",
        f"  runs on    {ledger.device}, executor {ledger.executor}, {_count(ledger.threads)}",
        *_lines(rows),
    ]


def _threads(ledger: Ledger) -> str:
    if ledger.ranks == 1:
        return _count(ledger.threads)
    return f"{ledger.ranks} ranks of {_count(ledger.threads)}"


def _count(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _lines(rows: Iterable[tuple[str, int, str]]) -> list[str]:
    return [f"  {part:<10} {bytes_text(count):>10}  {what}" for part, count, what in rows]


def _inputs(model: str, ledger: Ledger) -> str:
    """Report how inputs of linear layers are rounded, a loss that was measured, and how to measure it."""
    if ledger.inputs == "float32":
        return "float32, not rounded"
    how = f"rounded to {ledger.inputs}"
    if ledger.inputs == "int8":
        how += ", the largest of each group to 16 bits"
    if ledger.static_inputs:
        how += f", of {ledger.static_inputs} matrices by the checkpoint's static scales"
    elif ledger.inputs in _MEASURED:
        how += f"; changed {_MEASURED[ledger.inputs]} % of {_MEASURED_WITH}'s likeliest tokens"
    return f"{how}; galley eval quality {model} measures the loss"


def _state_row(ledger: Ledger) -> list[tuple[str, int, str]]:
    """Return the row of a model with recurrent layers; none for others."""
    if not ledger.states:
        return []
    each = bytes_text(ledger.states // ledger.state_slots)
    what = f"{ledger.state_slots:,} of {each}, running and of prefixes"
    return [("states", ledger.states, what)]


def _expert_row(ledger: Ledger) -> list[tuple[str, int, str]]:
    """Return the row of experts; none where all experts are in memory."""
    if not ledger.experts:
        return []
    all_of_them, chosen = (
        bytes_text(ledger.experts_on_disk),
        disk_read_text(ledger.experts_of_token),
    )
    return [("experts", ledger.experts, f"of {all_of_them} on disk, a token reads up to {chosen}")]


def _rank_row(ledger: Ledger) -> list[tuple[str, int, str]]:
    """Return the row of one of several GPUs, which hold parts of the same size; none for others."""
    if ledger.ranks == 1 or ledger.device == "cpu":
        return []
    each = (ledger.total - ledger.reserve) // ledger.ranks
    return [("each GPU", each, f"of {bytes_text(ledger.available // ledger.ranks)}")]


def _kv_row(ledger: Ledger) -> list[tuple[str, int, str]]:
    """Return the row of the KV cache; none for a model without a cache."""
    if not ledger.kv:
        return []
    each = bytes_text(ledger.kv_per_token)
    kind = f", {ledger.kv_dtype}" if ledger.kv_dtype else ""
    return [("KV cache", ledger.kv, f"{ledger.kv_tokens:,} tokens of {each}{kind}")]
