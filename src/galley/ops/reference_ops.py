"""The ops of a program in torch, run by ``ops/reference.py``, from input tiles to output tiles."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch.nn.functional import embedding, layer_norm, linear, pad, silu, softplus

from galley.graph.program import KVLayout, Op
from galley.ops.batch import Batch, EncoderBatch, Integers
from galley.ops.reference_elementwise import ELEMENTWISE
from galley.ops.reference_experts import expert_sum, gated, route
from galley.ops.reference_ranks import RankOps
from galley.ops.reference_recurrence import Recurrence, advance, causal_sum, recurrence
from galley.ops.reference_step import Step, places_in
from galley.ops.tiles import (
    TILE,
    Layout,
    Tiles,
)

Factors: TypeAlias = tuple[torch.Tensor, torch.Tensor, float]
"""(a, b, scale): an adapter adds scale * b (a x) to a layer; a is [rank, depth], b [outputs, rank]."""


class ReferenceOps(RankOps):
    """The implementations of all ops, with the weights and the cache."""

    def __init__(
        self, dtype: torch.dtype, device: torch.device, layouts: Sequence[KVLayout]
    ) -> None:
        super().__init__(dtype, device, layouts)
        self._adapters: list[dict[int, Factors]] = []
        """LoRA factors of each slot, by module number."""
        self._states: list[torch.Tensor] = []
        """The states of each recurrent layer, [slots, rows, width] of float32."""
        self._kernels: Mapping[str, Callable[[Op, Step, list[Tiles]], Tiles]] = {
            "embed": self._embed,
            "embed_part": self._embed_part,
            "all_gather": self._all_gather,
            "linear": self._linear,
            "lora": self._lora,
            "rms_norm": self._rms_norm,
            "rope": self._rope,
            "scale_queries_by_position": self._scale_queries_by_position,
            "attention": self._attention,
            "select_rows": self._select_rows,
            "route": self._route,
            "experts": self._experts,
            "head_linear": self._head_linear,
            "join_heads": self._join_heads,
            "causal_conv": self._causal_conv,
            "ssm": self._ssm,
            "delta_rule": self._delta_rule,
            "features": self._features,
            "im2col": self._im2col,
            "embed_positions": self._embed_positions,
            "embed_types": self._embed_types,
            "layer_norm": self._layer_norm,
            "encoder_attention": self._encoder_attention,
            "encoder_rows": self._encoder_rows,
            "cross_kv": self._cross_kv,
            "cross_attention": self._cross_attention,
            "cross_weights": self._cross_weights,
        }

    def _begin(self, source: Batch | EncoderBatch, starts: Integers, positions: Integers) -> Step:
        """Return the step of ``source`` before its first op; for the rows see :meth:`Step.place`."""
        step = Step(source, [self._on_device(table) for table in source.tables], {})
        step.place(np.asarray(starts), np.asarray(positions), self._device)
        if isinstance(source, Batch) and source.adapters is not None:
            step.adapters = np.repeat(np.asarray(source.adapters), np.diff(step.starts))
        return step

    def _run_op(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        """Run one op; return no tiles if it has no output, or no row of it is requested."""
        if elementwise := ELEMENTWISE.get(op.name):
            return [elementwise(op, *tiles) for tiles in zip(*inputs, strict=True)]
        return self._kernels[op.name](op, step, inputs)

    def _embed(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        assert isinstance(step.source, Batch)
        ids = step.layout.scatter(torch.from_numpy(np.asarray(step.source.tokens)).to(self._device))
        return [embedding(tile, self._weights[op.tensor("weight")]) for tile in ids]

    def _linear(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        weight = self.joined(op, "weight")
        bias = self.joined(op, "bias") if "bias" in op.weights else None
        return [self._multiply(tile, weight, bias) for tile in inputs[0]]

    def _multiply(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return linear(x, weight, bias)

    def _head_linear(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        weights = [self._weights[name] for name in op.weights["weight"]]
        return [
            torch.cat(
                [
                    self._multiply(part.contiguous(), weight)
                    for part, weight in zip(tile.chunk(len(weights), dim=1), weights, strict=True)
                ],
                dim=1,
            )
            for tile in inputs[0]
        ]

    def _join_heads(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        heads = op.attrs["heads"]
        return [
            torch.cat((a.view(TILE, heads, -1), b.view(TILE, heads, -1)), dim=2).view(TILE, -1)
            for a, b in zip(*inputs, strict=True)
        ]

    def _lora(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        out = [tile.clone() for tile in inputs[0]]
        if step.adapters is None:
            return out
        # Slot numbers are increased by one, because empty places in tiles are zero.
        slots = step.layout.scatter(torch.from_numpy(step.adapters + 1).to(self._device))
        for tile, x, there in zip(out, inputs[1], slots, strict=True):
            for slot in sorted({*there.tolist()} - {0}):
                mine = there == slot
                for number, start, width in op.attrs["modules"]:
                    if number in self._adapters[slot - 1]:
                        a, b, scale = self._adapters[slot - 1][number]
                        added = linear(linear(x, a), b) * scale
                        tile[mine, start : start + width] += added[mine]
        return out

    def _rms_norm(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        weight = self._weights[op.tensor("weight")] if op.weights else None
        eps, offset = op.attrs["eps"], op.attrs["offset"]

        def norm(tile: torch.Tensor) -> torch.Tensor:
            x = tile.float().reshape(TILE, -1, op.attrs["head_dim"])
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
            if weight is None:
                return x.to(self._dtype).reshape(TILE, -1)
            # Families with an offset of the weights round after the product, others before.
            x = x * (weight.float() + offset) if offset else weight * x.to(self._dtype)
            return x.to(self._dtype).reshape(TILE, -1)

        return [norm(tile) for tile in inputs[0]]

    def _rope(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        dim, pairs = op.attrs["head_dim"], len(op.attrs["inv_freq"])
        shape, members = ((pairs, 2), -1) if op.attrs["adjacent"] else ((2, pairs), -2)

        def rotate(tile: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            heads, rest = tile.reshape(TILE, -1, dim).float().tensor_split([2 * pairs], dim=-1)
            a, b = heads.reshape(TILE, -1, *shape).unbind(members)
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=members)
            whole = torch.cat((turned.flatten(-2), rest), dim=-1)
            return whole.to(self._dtype).reshape(TILE, -1)

        angles = self._angles(step, op.attrs["inv_freq"], op.attrs["scale"])
        return [rotate(x, *angle) for x, angle in zip(inputs[0], angles, strict=True)]

    def _angles(
        self, step: Step, inv_freq: tuple[float, ...], scale: float
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return (cos, sin), each [TILE, 1, len(inv_freq)], for each tile; all layers share them."""
        key = (inv_freq, scale)
        if key not in step.angles:
            frequencies = torch.tensor(inv_freq, dtype=torch.float32, device=self._device)
            turns = [p.float()[:, None, None] * frequencies for p in step.positions]
            step.angles[key] = [(t.cos() * scale, t.sin() * scale) for t in turns]
        return step.angles[key]

    def _scale_queries_by_position(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        interval, factor = op.attrs["interval"], op.attrs["factor"]
        scales = [
            torch.log1p(torch.floor((p.float() + 1.0) / interval)) * factor + 1.0
            for p in step.positions
        ]
        return [
            (tile.float() * scale[:, None]).to(self._dtype)
            for tile, scale in zip(inputs[0], scales, strict=True)
        ]

    def _select_rows(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        assert isinstance(step.source, Batch)
        wanted = np.asarray(step.source.wanted)
        if not len(wanted):
            return []
        rows = step.layout.gather(inputs[0])[torch.from_numpy(wanted).to(self._device)]
        step.layout = Layout.of(np.asarray(step.source.positions)[wanted], self._device)
        step.adapters = None if step.adapters is None else step.adapters[wanted]
        return step.layout.scatter(rows)

    def _route(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        bias = self._weights[op.tensor("bias")] if "bias" in op.weights else None
        return [route(tile.float(), op.attrs, bias) for tile in inputs[0]]

    def _experts(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        def product(role: str, expert: int, x: torch.Tensor) -> torch.Tensor:
            biases = op.weights.get(f"{role}_bias")
            bias = None if biases is None else self._weights[biases[expert]]
            return self._multiply(x, self._weights[op.weights[role][expert]], bias)

        def run(expert: int, x: torch.Tensor) -> torch.Tensor:
            made = gated(product("gate", expert, x), product("up", expert, x), op.attrs)
            if op.attrs["ranks"]:
                made = self.gathered(made, op.attrs["ranks"])
            return product("down", expert, made)

        scaled = op.attrs["scaled_inputs"]
        return [
            expert_sum(x, r, run, width=op.width, scaled_inputs=scaled)
            for x, r in zip(*inputs, strict=True)
        ]

    def _causal_conv(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        weight = self.joined(op, "weight").float().flatten(1)
        bias = self.joined(op, "bias").float() if "bias" in op.weights else None
        kernel = functools.partial(causal_sum, weight=weight, bias=bias)
        return [silu(tile).to(self._dtype) for tile in self._recur(op, step, kernel, inputs)]

    def _ssm(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        x, b, c, dt = inputs
        steps, decays = self._decays(op, dt)
        skip = self._weights[op.tensor("skip")].float()
        kernel = functools.partial(recurrence, heads=op.attrs["heads"], delta=False, skip=skip)
        made = self._recur(op, step, kernel, [c, b, x, steps, decays])
        return [tile.to(self._dtype) for tile in made]

    def _delta_rule(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        q, k, v, a, b = inputs
        _, decays = self._decays(op, a)
        betas = [torch.sigmoid(tile.float()) for tile in b]
        kernel = functools.partial(recurrence, heads=op.attrs["heads"], delta=True)
        made = self._recur(op, step, kernel, [q, k, v, betas, decays])
        return [tile.to(self._dtype) for tile in made]

    def _decays(self, op: Op, x: Tiles) -> tuple[Tiles, Tiles]:
        """Return the step softplus(x + bias) of each head, and the factor by which its state decays."""
        rates = self._weights[op.tensor("a_log")].float().exp()
        bias = self._weights[op.tensor("dt_bias")].float()
        steps = [softplus(tile.float() + bias) for tile in x]
        return steps, [torch.exp(-rates * step) for step in steps]

    def _recur(self, op: Op, step: Step, kernel: Recurrence, inputs: list[Tiles]) -> Tiles:
        assert isinstance(step.source, Batch)
        rows = [step.layout.gather(tiles).float() for tiles in inputs]
        kept = self._states[op.attrs["state"]]
        slots = step.source.state_slots()
        return step.layout.scatter(advance(kernel, kept, step.starts, slots, rows, op.width))

    def _features(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        assert isinstance(step.source, EncoderBatch)
        frames = torch.from_numpy(step.source.features)
        return step.layout.scatter(frames.to(self._device, self._dtype))

    def _im2col(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        size, stride = op.attrs["size"], op.attrs["stride"]
        parts = torch.split(step.layout.gather(inputs[0]), np.diff(step.starts).tolist())
        around = [
            pad(part, (0, 0, size // 2, size // 2)).unfold(0, size, stride).flatten(1)
            for part in parts
        ]
        lengths = np.array([len(rows) for rows in around])
        starts = np.concatenate([[0], lengths.cumsum()])
        step.place(starts, places_in(lengths), self._device)
        return step.layout.scatter(torch.cat(around))

    def _embed_positions(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        weight = self._weights[op.tensor("weight")][op.attrs["first"] :]
        return [embedding(tile, weight) for tile in step.positions]

    def _embed_types(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        assert isinstance(step.source, Batch)
        types = step.source.types
        given = np.zeros_like(step.at) if types is None else np.asarray(types)
        places = step.layout.scatter(torch.from_numpy(given).to(self._device))
        return [embedding(tile, self._weights[op.tensor("weight")]) for tile in places]

    def _layer_norm(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        dim, eps = op.attrs["head_dim"], op.attrs["eps"]
        weight = self._weights[op.tensor("weight")].float().view(-1, dim)
        bias = self._weights[op.tensor("bias")].float().view(-1, dim) if "bias" in op.weights else 0

        def norm(tile: torch.Tensor) -> torch.Tensor:
            heads = layer_norm(tile.float().reshape(TILE, -1, dim), (dim,), eps=eps)
            return (heads * weight + bias).to(self._dtype).reshape(TILE, -1)

        return [norm(tile) for tile in inputs[0]]

    def _encoder_rows(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        step.given = step.layout.gather(inputs[0])
        return []
