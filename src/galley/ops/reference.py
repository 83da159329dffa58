"""The reference executor: torch, op by op, any device. The truth that all others are tested against.

Exactness first: a row's result must have the same bits alone, batched and chunked. Library matrix
products change their order of summation with the row count, vectorised functions treat the tail of a
buffer differently from its body. So every op here sees tiles of one fixed shape, [16, width], in a
buffer of its own, and a token at position p always sits in slot p % 16 of its tile, as it does in its
KV block. Whatever the library does with that shape, it does the same to that row every time; what the
other slots hold (other sequences' rows, or zeros) cannot matter. Attention goes over key chunks of one
fixed size, from key 0 up; a chunk that is fully masked for a row changes none of its bits.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch.nn.functional import embedding, linear, silu

from galley.errors import SettingsError
from galley.formats.weights import Weight, Weights
from galley.graph.program import Op, Program
from galley.ops.executor import Batch, ExecutorOptions, Ints, Logits
from galley.quant.rtn import quantise_int4, quantise_int8
from galley.quant.weights import Quantise, dequantise
from galley.types import BLOCK_TOKENS, StepCosts

TILE: Final = BLOCK_TOKENS
KEY_CHUNK: Final = 256
"""Keys per attention step."""

_TORCH_TYPES: Final[Mapping[str, torch.dtype]] = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}
_QUANTISERS: Final[Mapping[str, Quantise]] = {"int8": quantise_int8, "int4": quantise_int4}
_LOWEST: Final = -1e30

Tiles = list[torch.Tensor]
"""A buffer: one [TILE, width] tensor for each tile of its layout."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the rows of a buffer sit: ``flat[r] = tile * TILE + slot``, ``slot = position % TILE``."""

    flat: torch.Tensor
    tiles: int

    @classmethod
    def of(cls, positions: Ints, device: torch.device) -> "Layout":
        """Rows with the same slot go to tiles 0, 1, 2 ... in the order of the rows."""
        slots = positions % TILE
        order = np.argsort(slots, kind="stable")
        sorted_slots = slots[order]
        first = np.searchsorted(sorted_slots, sorted_slots, side="left")
        tile = np.empty_like(slots)
        tile[order] = np.arange(len(slots)) - first
        flat = torch.from_numpy(tile * TILE + slots).to(device)
        return cls(flat, int(tile.max(initial=-1)) + 1)

    def scatter(self, rows: torch.Tensor) -> Tiles:
        """[rows, ...] -> tiles, zeros between."""
        full = rows.new_zeros((self.tiles * TILE, *rows.shape[1:]))
        full[self.flat] = rows
        # clone: each tile must start on an aligned address of its own
        return [tile.clone() for tile in torch.split(full, TILE)]

    def gather(self, tiles: Tiles) -> torch.Tensor:
        """Tiles -> [rows, ...] in the order of the rows."""
        return torch.cat(tiles)[self.flat]


@dataclass(slots=True)
class Step:
    """A batch on its way through the program. ``layout`` changes at select_rows."""

    batch: Batch
    layout: Layout
    positions: Tiles
    kv_slots: torch.Tensor
    tables: list[torch.Tensor]
    pairs: list[tuple[int, int, torch.Tensor, int, int]]
    """(sequence, tile, its slots in that tile, first and last position) for attention."""
    angles: dict[tuple[tuple[float, ...], float], list[tuple[torch.Tensor, torch.Tensor]]]


class ReferenceExecutor:
    """See :class:`galley.ops.executor.Executor`.

    Norms, softmax and rotation are computed in float32 whatever ``dtype`` is; products in ``dtype``.
    Matrices are rounded as ``quantize`` says and kept in ``dtype``; activations are not rounded.
    """

    def __init__(self, program: Program, weights: Weights, options: ExecutorOptions) -> None:
        if options.quantize == "float32" != options.dtype:
            raise SettingsError(
                f"quantize is 'float32', but the reference executor keeps weights in dtype, "
                f"which is {options.dtype!r}: leave quantize out, or use executor 'cpu'"
            )
        if options.disable_pass:
            raise SettingsError(
                f"disable_pass names {', '.join(options.disable_pass)}, but the reference executor "
                "runs the program as it was traced; leave it out, or use executor 'cpu'"
            )
        if options.kv_dtype != options.dtype:
            raise SettingsError(
                f"kv_dtype is {options.kv_dtype!r}, but the reference executor keeps keys and values "
                f"in dtype, which is {options.dtype!r}; leave it out, or use executor 'cpu'"
            )
        self._program = program
        self._quantize = options.quantize
        self._dtype = _TORCH_TYPES[options.dtype]
        self._device = _device(options.device)
        torch.set_num_threads(options.threads)
        self._weights = {name: self._load(weights[name]) for name in program.shapes}
        self._last_use = {b: i for i, op in enumerate(program.ops) for b in op.inputs}
        self.forward_seconds = 0.0
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._kernels: Mapping[str, Callable[[Op, Step, list[Tiles]], Tiles]] = {
            "embed": self._embed,
            "linear": self._linear,
            "rms_norm": self._rms_norm,
            "rope": self._rope,
            "attention": self._attention,
            "silu_mul": self._silu_mul,
            "add": self._add,
            "select_rows": self._select_rows,
        }

    def _load(self, weight: Weight) -> torch.Tensor:
        is_matrix = len(weight.shape) == 2
        if is_matrix and self._quantize in _QUANTISERS:
            values = torch.from_numpy(dequantise(_QUANTISERS[self._quantize](weight)))
        else:
            raw = torch.from_numpy(np.array(weight.data)).view(_TORCH_TYPES[weight.dtype])
            values = raw.reshape(weight.shape)
        if is_matrix and self._quantize == "bf16":
            values = values.to(torch.bfloat16)
        return values.to(self._device, self._dtype).contiguous()

    def step_costs(self) -> StepCosts:
        """See :meth:`galley.ops.executor.Executor.step_costs`."""
        linear = [op for op in self._program.ops if op.name == "linear"]
        names = {name for op in linear for name in op.weights["weight"]}
        row_operations, logit_operations = self._program.operations()
        return StepCosts(
            weight_bytes=sum(self._weights[name].nbytes for name in names),
            kv_bytes_per_token=self.kv_bytes_per_block() // BLOCK_TOKENS,
            row_operations=row_operations,
            logit_operations=logit_operations,
        )

    def kv_bytes_per_block(self) -> int:
        """Bytes over all layers."""
        return BLOCK_TOKENS * self._program.kv_bytes_per_token(self._dtype.itemsize)

    def free_device_memory(self) -> int | None:
        """Of a GPU; the host's memory is not this executor's to judge."""
        if self._device.type != "cuda":
            return None
        free, _ = torch.cuda.mem_get_info(self._device)
        return free

    def allocate_kv(self, blocks: int) -> None:
        """Zeroed, so pages are only touched when they are used."""
        for kv in self._program.kv:
            shape = (blocks, BLOCK_TOKENS, kv.kv_heads, kv.head_dim)
            self._keys.append(torch.zeros(shape, dtype=self._dtype, device=self._device))
            self._values.append(torch.zeros(shape, dtype=self._dtype, device=self._device))

    def forward(self, batch: Batch) -> Logits:
        """See :meth:`galley.ops.executor.Executor.forward`."""
        began = time.perf_counter()
        logits = self._forward(batch)
        self.forward_seconds += time.perf_counter() - began
        return logits

    @torch.inference_mode()
    def _forward(self, batch: Batch) -> Logits:
        step = self._begin(batch)
        buffers: dict[int, Tiles] = {}
        for i, op in enumerate(self._program.ops):
            if op.name == "select_rows" and not len(batch.wanted):
                return np.empty((0, self._program.vocab_size), dtype=np.float32)
            inputs = [buffers[b] for b in op.inputs]
            buffers[op.output] = self._kernels[op.name](op, step, inputs)
            for b in op.inputs:
                if self._last_use[b] == i:
                    buffers.pop(b, None)
        logits = step.layout.gather(buffers[self._program.ops[-1].output])
        return logits.to("cpu", torch.float32).numpy()

    def _begin(self, batch: Batch) -> Step:
        layout = Layout.of(batch.positions, self._device)
        tables = [torch.from_numpy(table).to(self._device) for table in batch.tables]
        lengths = np.diff(batch.starts)
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        blocks = np.concatenate(
            [
                table[batch.positions[begin:end] // BLOCK_TOKENS]
                for table, begin, end in zip(
                    batch.tables, batch.starts[:-1], batch.starts[1:], strict=True
                )
            ]
        )
        kv_slots = torch.from_numpy(blocks * BLOCK_TOKENS + batch.positions % BLOCK_TOKENS)
        positions = layout.scatter(torch.from_numpy(batch.positions).to(self._device))
        pairs = _pairs(layout.flat.cpu().numpy(), sequence, batch.positions, self._device)
        return Step(batch, layout, positions, kv_slots.to(self._device), tables, pairs, {})

    def _embed(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        ids = step.layout.scatter(torch.from_numpy(step.batch.tokens).to(self._device))
        return [embedding(tile, self._weights[op.tensor("weight")]) for tile in ids]

    def _linear(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        weight = self._weights[op.tensor("weight")]
        bias = self._weights[op.tensor("bias")] if "bias" in op.weights else None
        return [linear(tile, weight, bias) for tile in inputs[0]]

    def _rms_norm(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        weight, eps = self._weights[op.tensor("weight")], op.attrs["eps"]

        def norm(tile: torch.Tensor) -> torch.Tensor:
            x = tile.float().reshape(TILE, -1, op.attrs["head_dim"])
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
            return (weight * x.to(self._dtype)).reshape(TILE, -1)

        return [norm(tile) for tile in inputs[0]]

    def _rope(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        half = op.attrs["head_dim"] // 2

        def rotate(tile: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            heads = tile.reshape(TILE, -1, 2 * half)
            a, b = heads[..., :half].float(), heads[..., half:].float()
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
            return turned.to(self._dtype).reshape(TILE, -1)

        angles = self._angles(step, op.attrs["inv_freq"], op.attrs["scale"])
        return [rotate(x, *angle) for x, angle in zip(inputs[0], angles, strict=True)]

    def _angles(
        self, step: Step, inv_freq: tuple[float, ...], scale: float
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(cos, sin), each [TILE, 1, head_dim / 2], for each tile; shared by all layers."""
        key = (inv_freq, scale)
        if key not in step.angles:
            frequencies = torch.tensor(inv_freq, dtype=torch.float32, device=self._device)
            turns = [p.float()[:, None, None] * frequencies for p in step.positions]
            step.angles[key] = [(t.cos() * scale, t.sin() * scale) for t in turns]
        return step.angles[key]

    def _attention(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        a = op.attrs
        keys, values = self._keys[a["layer"]], self._values[a["layer"]]
        shape = (-1, a["kv_heads"], a["head_dim"])
        for cache, tiles in ((keys, inputs[1]), (values, inputs[2])):
            cache.view(shape)[step.kv_slots] = step.layout.gather(tiles).view(shape)
        out = [torch.zeros_like(tile) for tile in inputs[0]]
        for sequence, tile, slots, first, last in step.pairs:
            mixed = attend(
                inputs[0][tile],
                step.positions[tile],
                keys,
                values,
                step.tables[sequence],
                first=first,
                last=last,
                scale=a["scale"],
                window=a["window"],
            )
            out[tile][slots] = mixed[slots]
        return out

    def _silu_mul(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        return [silu(a) * b for a, b in zip(*inputs, strict=True)]

    def _add(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        return [a + b for a, b in zip(*inputs, strict=True)]

    def _select_rows(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        rows = step.layout.gather(inputs[0])[torch.from_numpy(step.batch.wanted).to(self._device)]
        step.layout = Layout.of(step.batch.positions[step.batch.wanted], self._device)
        return step.layout.scatter(rows)


def attend(
    q: torch.Tensor,
    positions: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    *,
    first: int,
    last: int,
    scale: float,
    window: int,
) -> torch.Tensor:
    """Causal attention of one tile over one sequence's cache, with a running softmax (arXiv:2205.14135).

    Args:
        q: [TILE, heads * head_dim].
        positions: [TILE] of the rows; rows of other sequences give garbage, to be dropped.
        keys, values: [blocks, BLOCK_TOKENS, kv_heads, head_dim].
        table: the sequence's blocks.
        first, last: the sequence's least and greatest position in this tile.
        scale: multiplies q k^T.
        window: 0, or how many keys up to its own a row may see.

    Returns:
        [TILE, heads * head_dim].
    """
    kv_heads, dim = keys.shape[2:]
    group = q.shape[1] // (kv_heads * dim)
    # [kv_heads, TILE * group, dim]: the heads that share a KV head are rows of one product
    rows = q.view(TILE, kv_heads, group, dim).transpose(0, 1).reshape(kv_heads, TILE * group, dim)
    at = positions.repeat_interleave(group)[None, :, None]
    total = torch.zeros((kv_heads, TILE * group, 1), device=q.device)
    best = torch.full_like(total, _LOWEST)
    mixed = torch.zeros((kv_heads, TILE * group, dim), device=q.device)
    start = max(0, first - window + 1) // KEY_CHUNK * KEY_CHUNK if window else 0
    for begin in range(start, last + 1, KEY_CHUNK):
        blocks = table[begin // BLOCK_TOKENS : (begin + KEY_CHUNK) // BLOCK_TOKENS]
        k, v = (_chunk(cache, blocks) for cache in (keys, values))
        key_at = torch.arange(begin, begin + KEY_CHUNK, device=q.device)
        seen = key_at <= at
        if window:
            seen &= key_at > at - window
        scores = torch.bmm(rows, k.transpose(1, 2)).float() * scale
        scores = scores.masked_fill(~seen, -torch.inf)
        new_best = torch.maximum(best, scores.amax(-1, keepdim=True))
        shrink = torch.exp(best - new_best)
        p = torch.exp(scores - new_best)
        total = total * shrink + p.sum(-1, keepdim=True)
        mixed = mixed * shrink + torch.bmm(p.to(v.dtype), v).float()
        best = new_best
    mixed = (mixed / total.clamp_min(1e-38)).to(q.dtype)
    return mixed.view(kv_heads, TILE, group, dim).transpose(0, 1).reshape(TILE, -1)


def _chunk(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """[kv_heads, KEY_CHUNK, dim] of these blocks, zeros where there are fewer."""
    chunk = cache.new_zeros((KEY_CHUNK // BLOCK_TOKENS, *cache.shape[1:]))
    torch.index_select(cache, 0, blocks, out=chunk[: len(blocks)])
    return chunk.view(KEY_CHUNK, *cache.shape[2:]).transpose(0, 1).contiguous()


def _pairs(
    flat: Ints, sequence: Ints, positions: Ints, device: torch.device
) -> list[tuple[int, int, torch.Tensor, int, int]]:
    """The (sequence, tile) pairs that share rows; see :class:`Step`."""
    members: dict[tuple[int, int], list[int]] = {}
    for row, key in enumerate(zip(sequence.tolist(), (flat // TILE).tolist(), strict=True)):
        members.setdefault(key, []).append(row)
    return [
        (
            s,
            tile,
            torch.from_numpy(flat[rows] % TILE).to(device),
            int(positions[rows[0]]),
            int(positions[rows[-1]]),
        )
        for (s, tile), rows in members.items()
    ]


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device {name!r} cannot be used: {error}") from error
    return device
