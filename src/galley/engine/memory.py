"""Sizes the KV cache before anything is loaded, and keeps the ledger of all memory that a model takes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from galley.errors import EngineFailed, NotEnoughMemory, SettingsError
from galley.graph.program import KVGroup, Program
from galley.machine import address_space_left, available_memory, bytes_text, disk_read_text
from galley.ops.executor import ExecutorMemory, ExecutorOptions
from galley.settings.engine import EngineSettings
from galley.types import BLOCK_TOKENS, blocks_for
from galley.types.model_info import Ledger
from galley.types.weight_dtypes import SIZES, SMALLEST, smaller_than

LEAST_TOKENS: Final = 512
"""Tokens of one request that must fit for a server to be useful."""

LEAST_STATES: Final = 2
"""State slots per request: one that continues from a kept state reads it and writes its own."""

RESERVE_BYTES: Final = 192 << 20
"""Bytes for the server (60 MiB), text workers (35 MiB + tokenizer each) and unread responses (64 MiB)."""

_LENGTHS: Final = (512, 2048, 8192, 32768, 131072)
"""Request lengths in tokens, below the longest context, for which a ledger states how many requests fit."""

_SHOWN_LENGTHS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSize:
    """The size of a KV cache in blocks.

    Attributes:
        groups: KV groups; a sequence has a block table in each.
        block_bytes: bytes of one block.
        encoder_blocks: blocks that the encoder output of one sequence takes.
        max_model_len: maximum number of tokens of one sequence.
        blocks: number of blocks.
        state_bytes: bytes of one state of the recurrent layers; 0 if there are none.
        states: number of slots for states.
    """

    groups: tuple[KVGroup, ...]
    block_bytes: int
    encoder_blocks: int
    max_model_len: int
    blocks: int = 0
    state_bytes: int = 0
    states: int = 0

    def needed_for(self, tokens: int) -> int:
        """Return the blocks that a sequence of ``tokens`` tokens takes, excluding its encoder output."""
        return len(self.groups) * blocks_for(tokens)

    @property
    def least(self) -> int:
        """The number of blocks below which no useful request could run."""
        return self.needed_for(min(LEAST_TOKENS, self.max_model_len)) + self.encoder_blocks

    @property
    def bytes(self) -> int:
        """Bytes of all blocks."""
        return self.blocks * self.block_bytes

    @property
    def tokens(self) -> int:
        """Tokens of a single sequence that fill all blocks, across all groups."""
        return self.blocks // len(self.groups) * BLOCK_TOKENS

    def requests(self, running_limit: int) -> tuple[tuple[int, int], ...]:
        """Return (tokens, number of concurrent sequences of that length) for some lengths."""
        longest = min(self.max_model_len, self.tokens)
        lengths = [n for n in _LENGTHS if n < longest] + [longest]
        each = ((n, self.needed_for(n) + self.encoder_blocks) for n in lengths)
        limit = min(running_limit, self.states) if self.state_bytes else running_limit
        found = [(n, min(limit, self.blocks // max(1, blocks))) for n, blocks in each]
        return tuple(found[-_SHOWN_LENGTHS:])


def plan_memory(
    settings: EngineSettings,
    program: Program,
    options: ExecutorOptions,
    executor: str,
    memory_of: Callable[[ExecutorOptions], ExecutorMemory],
    *,
    name: str,
    family: str,
) -> tuple[KVSize, Ledger]:
    """Return the size of the KV cache that the engine will allocate, and the ledger; nothing is loaded.

    The cache is as large as requested, or takes a share of the memory left after weights and buffers, but
    no more than all running sequences can fill.

    Args:
        settings: the engine's settings.
        program: the traced model.
        options: how the model will run.
        executor: name of the executor that will run it.
        memory_of: returns the memory that the executor will hold with given options.
        name: the model's name, for messages.
        family: the model's family.

    Raises:
        SettingsError: ``max_model_len`` exceeds the model's context.
        EngineFailed: the requested cache does not hold one encoder input.
    """
    memory = memory_of(options)
    size = KVSize(
        groups=program.kv_groups,
        block_bytes=memory.kv_block,
        encoder_blocks=0 if program.encoder is None else blocks_for(program.encoder.max_rows),
        max_model_len=_max_model_len(settings, program),
        state_bytes=memory.state,
    )
    available = memory.free
    if available is None:
        available = min(available_memory(), address_space_left())
    buffers = memory.buffers(settings.max_batch_tokens, settings.logit_rows)
    left = available - memory.weights - memory.adapters - buffers - RESERVE_BYTES
    remaining = left - _least_cache(settings, size)
    experts = memory.experts.cache_bytes(settings.expert_cache_bytes, remaining)
    room = int(max(0, left - experts) * settings.kv_memory_fraction)
    size = replace(size, states=_states(settings, size, room))
    size = replace(size, blocks=_kv_blocks(settings, size, room - size.states * size.state_bytes))
    if size.blocks <= size.encoder_blocks:
        raise EngineFailed(
            f"a KV cache of {size.blocks * BLOCK_TOKENS} tokens has no room for an encoder input, which "
            f"takes {size.encoder_blocks * BLOCK_TOKENS}, and its transcript; raise kv_cache_tokens"
        )
    ledger = Ledger(
        family=family,
        parameters=sum(map(math.prod, program.all_shapes.values())),
        executor=executor,
        isa=memory.isa,
        device=options.device,
        threads=options.threads,
        ranks=options.ranks,
        weight_dtype=memory.kinds,
        inputs=memory.activations,
        static_inputs=memory.static_inputs,
        kv_dtype=options.kv_dtype,
        max_model_len=size.max_model_len,
        step_tokens=settings.max_batch_tokens,
        weights=memory.weights,
        buffers=buffers,
        kv_per_token=memory.kv_block * len(program.kv_groups) // BLOCK_TOKENS,
        kv_tokens=size.tokens,
        kv=size.bytes,
        state_slots=size.states,
        states=size.states * size.state_bytes,
        reserve=RESERVE_BYTES,
        available=available,
        requests=size.requests(settings.running_limit),
        adapters=memory.adapters,
        experts=experts,
        experts_on_disk=memory.experts.bytes,
        experts_of_token=memory.experts.token,
    )
    if not ledger.fits:
        changes = _changes(settings, program, options, ledger, size, memory_of)
        raise NotEnoughMemory(refusal(name, ledger, changes))
    return size, ledger


def plan_without_cache(
    settings: EngineSettings,
    program: Program,
    options: ExecutorOptions,
    executor: str,
    memory_of: Callable[[ExecutorOptions], ExecutorMemory],
    *,
    name: str,
    family: str,
    longest: int,
    all_rows: bool,
) -> tuple[int, Ledger]:
    """Return (maximum tokens of a text, ledger) for a model that processes each text whole, in one step.

    Args:
        settings, program, options, executor, memory_of, name, family: as for :func:`plan_memory`.
        longest: maximum length in tokens that the model was made for. Unless the settings request a
            length, it is reduced to what fits the memory.
        all_rows: whether a text's result uses the rows of all its tokens.

    Raises:
        SettingsError: ``max_model_len`` exceeds the model's positions.
    """
    memory = memory_of(options)
    available = memory.free
    if available is None:
        available = min(available_memory(), address_space_left())
    left = available - memory.weights - RESERVE_BYTES

    def buffers(tokens: int) -> int:
        rows = max(settings.max_batch_tokens, tokens)
        return memory.buffers(rows, rows if all_rows else settings.max_batch_tokens)

    most = _max_model_len(settings, program) if settings.max_model_len else longest
    while settings.max_model_len is None and most > LEAST_TOKENS and buffers(most) > left:
        most = max(LEAST_TOKENS, most // 2)
    ledger = Ledger(
        family=family,
        parameters=sum(map(math.prod, program.all_shapes.values())),
        executor=executor,
        isa=memory.isa,
        device=options.device,
        threads=options.threads,
        ranks=options.ranks,
        weight_dtype=memory.kinds,
        inputs=memory.activations,
        static_inputs=memory.static_inputs,
        kv_dtype=options.kv_dtype,
        max_model_len=most,
        step_tokens=settings.max_batch_tokens,
        weights=memory.weights,
        buffers=buffers(most),
        kv_per_token=0,
        kv_tokens=0,
        kv=0,
        reserve=RESERVE_BYTES,
        available=available,
        requests=((most, max(1, settings.max_batch_tokens // most)),),
    )
    if not ledger.fits:
        missing = bytes_text(ledger.total - ledger.available)
        changes = [
            f"{missing} more memory: a larger container limit or ulimit -v",
            f"--weight-dtype {' or '.join(SIZES)}, if not set yet",
            "lower --max-model-len and --max-batch-tokens, since buffers have room for the longest text",
        ]
        raise NotEnoughMemory(refusal(name, ledger, changes))
    return most, ledger


def refusal(name: str, ledger: Ledger, changes: Sequence[str]) -> str:
    """Return the message that states what does not fit and what would make it fit."""
    parts = ", ".join(
        f"{what} {bytes_text(count)}"
        for what, count in (
            (f"{ledger.weight_dtype} weights", ledger.weights),
            (f"KV cache of {ledger.kv_tokens:,} tokens", ledger.kv),
            ("buffers", ledger.buffers),
            ("experts from disk", ledger.experts),
            ("adapters", ledger.adapters),
            (f"{ledger.state_slots:,} states", ledger.states),
            ("reserve", ledger.reserve),
        )
        if count
    )
    listed = "".join(f"\n  {i}. {change}" for i, change in enumerate(changes, 1))
    return (
        f"{name} does not fit in memory: it needs {bytes_text(ledger.total)} ({parts}), "
        f"{bytes_text(ledger.available)} are available. Each of these makes it fit:{listed}"
    )


def _changes(
    settings: EngineSettings,
    program: Program,
    options: ExecutorOptions,
    ledger: Ledger,
    size: KVSize,
    memory_of: Callable[[ExecutorOptions], ExecutorMemory],
) -> list[str]:
    """Return three changes that each make the model fit: settings, then memory, then a smaller model."""
    changes = []
    least = size.least * size.block_bytes
    others = ledger.total - ledger.weights - ledger.experts
    requested = 0 if settings.expert_cache_bytes is None else ledger.experts

    def weights_as(kind: str) -> int:
        memory = memory_of(replace(options, weight_dtype=kind))
        return memory.weights + max(memory.experts.least_bytes, requested)

    rooms = (ledger.available - ledger.total + ledger.kv) // size.block_bytes
    if settings.kv_cache_tokens is not None and rooms >= size.least:
        tokens = replace(size, blocks=rooms).tokens
        changes.append(f"--kv-cache-tokens {tokens} (the cache then uses the remaining memory)")
    # Skip types that do not make any of the model's matrices smaller.
    for kind in smaller_than(options.weight_dtype) if ledger.executor == "cpu" else ():
        needs = others + weights_as(kind)
        if needs <= ledger.available:
            changes.append(f"--weight-dtype {kind} (needs {bytes_text(needs)})")
            break
    else:
        if ledger.executor == "cpu" and options.weight_dtype != SMALLEST:
            needs = others - ledger.kv + least + weights_as(SMALLEST)
            if needs <= ledger.available:
                tokens = replace(size, blocks=size.least).tokens
                changes.append(
                    f"--weight-dtype {SMALLEST} --kv-cache-tokens {tokens} (needs {bytes_text(needs)})"
                )
    del changes[2:]
    changes += _of_experts(program, options, ledger, memory_of)
    missing = ledger.total - ledger.available
    changes.append(
        f"{bytes_text(missing)} more memory: a larger container limit or ulimit -v, fewer other "
        "programs, or another machine (galley plan MODEL compares them)"
    )
    smallest = replace(options, experts="memory")
    if ledger.executor == "cpu":
        smallest = replace(smallest, weight_dtype=SMALLEST)
    per_parameter = memory_of(smallest).weights / max(1, ledger.parameters)
    room = ledger.available - ledger.buffers - ledger.adapters - ledger.states
    room -= ledger.reserve + least
    if room > 0:
        kind = SMALLEST if ledger.executor == "cpu" else options.weight_dtype
        changes.append(
            f"a smaller model: up to about {room / per_parameter / 1e6:,.0f} million parameters with "
            f"--weight-dtype {kind}"
        )
    if len(changes) < 3:
        changes.append(
            f"a machine or container with {bytes_text(2 * ledger.total)}, which also has room for more "
            "concurrent requests"
        )
    return changes[:3]


def _of_experts(
    program: Program,
    options: ExecutorOptions,
    ledger: Ledger,
    memory_of: Callable[[ExecutorOptions], ExecutorMemory],
) -> list[str]:
    """Return the change to experts on disk, or to fewer of them in memory, if that makes the model fit."""
    others = ledger.total - ledger.weights - ledger.experts
    if options.experts == "disk":
        memory = memory_of(options)
        slots = (ledger.available - others - memory.weights) // memory.experts.slot
        if slots < memory.experts.least:
            return []
        return [f"--expert-cache-bytes {slots * memory.experts.slot}"]
    routed = any(op.signature.routed for op in program.ops)
    if not routed or options.weight_cache is None or ledger.executor != "cpu":
        return []
    memory = memory_of(replace(options, experts="disk"))
    needs = others + memory.weights + memory.experts.least_bytes
    if needs > ledger.available:
        return []
    return [
        f"--experts disk (needs {bytes_text(needs)}; a token then reads up to "
        f"{disk_read_text(memory.experts.token)})"
    ]


def _max_model_len(settings: EngineSettings, program: Program) -> int:
    wanted = settings.max_model_len or program.max_positions
    if wanted > program.max_positions:
        raise SettingsError(
            f"max_model_len {wanted} exceeds the model's context of {program.max_positions} tokens"
        )
    return wanted


def _states(settings: EngineSettings, size: KVSize, room: int) -> int:
    """Return the number of state slots: running sequences, and as many prefixes as the KV cache may have.

    States take at most half of ``room``, which they share with the KV cache.
    """
    if not size.state_bytes:
        return 0
    tokens = settings.kv_cache_tokens or settings.running_limit * size.max_model_len
    kept = tokens // settings.state_interval if settings.prefix_cache else 0
    return max(LEAST_STATES, min(settings.running_limit + kept, room // 2 // size.state_bytes))


def _kv_blocks(settings: EngineSettings, size: KVSize, room: int) -> int:
    """Return the requested blocks, or those that fit ``room`` bytes, at least one useful request's."""
    least = _least(settings, size)
    if settings.kv_cache_tokens is not None:
        return least
    most = settings.running_limit * (size.needed_for(size.max_model_len) + size.encoder_blocks)
    return max(least, min(most, room // size.block_bytes))


def _least(settings: EngineSettings, size: KVSize) -> int:
    """Return the blocks needed to start: those requested, or those of one useful request."""
    requested = settings.kv_cache_tokens
    return size.least if requested is None else size.needed_for(requested)


def _least_cache(settings: EngineSettings, size: KVSize) -> int:
    """Return the bytes of blocks and states without which the engine does not start."""
    states = LEAST_STATES * size.state_bytes
    return size.block_bytes * _least(settings, size) + states
