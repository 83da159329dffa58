"""The launches of mixtures of experts, and of other products whose rows have matrices of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
import triton

from galley.errors import UnsupportedModel
from galley.formats.weights import Weights
from galley.graph.program import Op, Program
from galley.ops.triton.kernels.experts import (
    count_kernel,
    grouped_kernel,
    place_kernel,
    route_kernel,
    sum_choices_kernel,
)
from galley.ops.triton.matrices import FUSION, GATHERED, Matrix
from galley.ops.triton.packing import join, pack
from galley.ops.triton.tiles import ROWS_TOGETHER, Device, grouped_tile

if TYPE_CHECKING:
    from galley.ops.triton.ranks import TensorRanks

_SCANNED: Final = 1024
"""Choices that a program compares with its expert at a time."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The choices of a step's rows, sorted by expert; see ``kernels/experts.py``.

    Attributes:
        order, tiles: as in that file.
        experts: number of experts.
        per_row: choices of a row.
        rows_in_tile: most choices of a tile.
    """

    order: torch.Tensor
    tiles: torch.Tensor
    experts: int
    per_row: int
    rows_in_tile: int


def group_rows(numbers: torch.Tensor, per_row: int, experts: int, device: Device) -> Groups:
    """Sort the choices of rows by expert.

    Args:
        numbers: [rows, ...], whose first ``per_row`` columns are the numbers of experts; -1 is none.
        per_row: choices of a row.
        experts: number of experts.
        device: the device of all tensors.
    """
    choices = len(numbers) * per_row
    together = rows_in_tile(choices, experts)
    tiles = choices // together + min(experts, choices)
    counts, order, tile = (
        torch.empty(n, dtype=torch.int32, device=device.torch)
        for n in (experts, choices, 3 * tiles)
    )
    common = {"PER_ROW": per_row, "BLOCK": _SCANNED, **FUSION}
    count_kernel[(experts,)](numbers, counts, choices, numbers.stride(0), **common)
    place_kernel[(experts,)](
        numbers,
        counts,
        order,
        tile,
        choices,
        numbers.stride(0),
        experts,
        tiles,
        BLOCK_T=together,
        BLOCK_E=triton.next_power_of_2(experts),
        **common,
    )
    return Groups(order, tile.view(tiles, 3), experts, per_row, together)


def group_heads(rows: int, heads: int, device: Device) -> Groups:
    """Return every head of every row as a choice, for matrices of heads."""
    together = rows_in_tile(rows * heads, heads)
    place = torch.arange(rows * heads, dtype=torch.int32, device=device.torch)
    head = torch.arange(heads, dtype=torch.int32, device=device.torch)[:, None]
    begin = torch.arange(0, rows, together, dtype=torch.int32, device=device.torch)[None, :]
    parts = head + 0 * begin, head * rows + begin, head * rows + (begin + together).clamp(max=rows)
    tiles = torch.stack(parts, dim=2).view(-1, 3)
    return Groups(place.view(rows, heads).T.reshape(-1), tiles, heads, heads, together)


def rows_in_tile(choices: int, experts: int) -> int:
    """Return the number of rows of a tile: about as many as an expert has."""
    mean = -(-choices // experts)
    return min(128, max(16, int(triton.next_power_of_2(mean))))


def multiply_groups(
    matrix: Matrix,
    groups: Groups,
    device: Device,
    x: torch.Tensor,
    out: torch.Tensor,
    *,
    divide: bool,
    gating: tuple[float, float] | None = None,
    weights: torch.Tensor | None = None,
    add: bool = False,
) -> None:
    """Multiply each choice by the matrix of its expert.

    Args:
        matrix: the matrices of all experts, one after another.
        groups: the choices.
        device: the device of all tensors.
        x: [rows, depth], or [choices, depth] unless ``divide``.
        out: [choices, outputs of an expert], or half as wide with ``gating``.
        divide: whether all choices of a row read the same row of ``x``.
        gating: (alpha, limit) by which pairs of outputs are combined.
        weights: [rows, per_row] float32 by which products are scaled.
        add: whether products are added to ``out``.
    """
    each = matrix.outputs // groups.experts
    rows = groups.rows_in_tile
    tile = grouped_tile(device, matrix.kind, x.dtype, rows, each)
    columns = matrix.words or tile.columns
    none = matrix.values
    alpha, limit = gating or (1.0, 0.0)
    grouped_kernel[(len(groups.tiles), triton.cdiv(each, tile.outputs))](
        x,
        matrix.values,
        none if matrix.scales is None else matrix.scales,
        none if matrix.zeros is None else matrix.zeros,
        none if matrix.minima is None else matrix.minima,
        none if matrix.bias is None else matrix.bias,
        none if weights is None else weights,
        out,
        groups.order,
        groups.tiles,
        len(x),
        matrix.outputs,
        each,
        matrix.depth,
        x.stride(0),
        0 if weights is None else weights.stride(0),
        out.stride(0),
        matrix.group,
        alpha,
        limit,
        SCALED=matrix.kind != "dense" and not matrix.grouped,
        BIAS=matrix.bias is not None,
        GATED=gating is not None,
        LIMITED=limit > 0.0,
        WEIGHED=weights is not None,
        ADD=add,
        PER_ROW=groups.per_row,
        DIVIDE=divide,
        BLOCK_N=tile.outputs,
        BLOCK_T=rows,
        BLOCK_K=columns,
        EVEN=matrix.depth % (columns * matrix.parts) == 0,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **matrix.constants(device, x.dtype),
    )


class Route:
    """The launch of a ``route`` op."""

    def __init__(self, attrs: Mapping[str, Any], bias: torch.Tensor | None) -> None:
        self._bias, self._factor = bias, float(attrs["factor"])
        self._constants: dict[str, Any] = {
            "EXPERTS": attrs["experts"],
            "CHOSEN": attrs["per_token"],
            "GROUPS": attrs["groups"],
            "KEPT": attrs["kept_groups"],
            "BEST": attrs["group_best"],
            "SIGMOID": attrs["scores"] == "sigmoid",
            "NORMALIZE": bool(attrs["normalize"]),
            "BIAS": bias is not None,
            "BLOCK": triton.next_power_of_2(attrs["experts"]),
            "BLOCK_C": triton.next_power_of_2(attrs["per_token"]),
            "ROWS": ROWS_TOGETHER,
            **FUSION,
        }

    def __call__(self, logits: torch.Tensor, out: torch.Tensor) -> None:
        """Write the routes of logits [rows, experts] to ``out`` [rows, 2 * per_token] float32."""
        route_kernel[(triton.cdiv(len(logits), ROWS_TOGETHER),)](
            logits,
            logits if self._bias is None else self._bias,
            out,
            len(logits),
            logits.stride(0),
            out.stride(0),
            self._factor,
            **self._constants,
        )


class Experts:
    """The launches of an ``experts`` op, with the packed matrices of all experts."""

    def __init__(
        self,
        program: Program,
        op: Op,
        weights: Weights,
        dtype: torch.dtype,
        device: Device,
        ranks: "TensorRanks | None" = None,
    ) -> None:
        """Pack the matrices. ``ranks``: those that have the other parts of each expert, if it is divided.

        Raises:
            UnsupportedModel: matrices of one role have different types.
        """
        _check_kinds(program, op)
        self._device, self._per_token = device, int(op.attrs["per_token"])
        self._gating = float(op.attrs["alpha"]), float(op.attrs["limit"])
        self._scaled_inputs = bool(op.attrs["scaled_inputs"])
        self._experts = len(op.weights["gate"])
        self._ranks, self._inner = ranks, tuple(op.attrs.get("ranks", ()))

        def packed(*roles: str) -> Matrix:
            parts = []
            for e in range(self._experts):
                bias = [f"{role}_bias" for role in roles]
                parts.append(
                    pack(
                        [weights[op.weights[role][e]] for role in roles],
                        program.kinds[op.weights[roles[0]][e]],
                        dtype,
                        device.torch,
                        bias=[weights[op.weights[b][e]] for b in bias if b in op.weights],
                        gated=len(roles) == 2,
                    )
                )
            return join(parts)

        self._gate_up, self._down = packed("gate", "up"), packed("down")

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return self._gate_up.nbytes + self._down.nbytes

    def __call__(self, x: torch.Tensor, routes: torch.Tensor, out: torch.Tensor) -> None:
        """Compute the experts of rows x [rows, hidden] to ``out``, as wide."""
        rows, k = len(x), self._per_token
        groups = group_rows(routes, k, self._experts, self._device)
        weights = routes[:, k:]
        own = self._gate_up.outputs // self._experts // 2
        inner, made = (
            torch.empty((rows * k, width), dtype=x.dtype, device=x.device)
            for width in (own, out.shape[1])
        )
        multiply_groups(
            self._gate_up,
            groups,
            self._device,
            x,
            inner,
            divide=True,
            gating=self._gating,
            weights=weights if self._scaled_inputs else None,
        )
        if self._inner:
            inner = self._gathered(inner)
        multiply_groups(self._down, groups, self._device, inner, made, divide=False)
        block = min(GATHERED, triton.next_power_of_2(out.shape[1]))
        sum_choices_kernel[(triton.cdiv(rows, ROWS_TOGETHER), triton.cdiv(out.shape[1], block))](
            made,
            weights,
            out,
            rows,
            weights.stride(0),
            out.stride(0),
            out.shape[1],
            PER_ROW=k,
            WEIGHED=not self._scaled_inputs,
            ROWS=ROWS_TOGETHER,
            BLOCK=block,
            **FUSION,
        )

    def _gathered(self, inner: torch.Tensor) -> torch.Tensor:
        """Return the products of all ranks: a rank multiplies whole rows by its rows of ``down``."""
        assert self._ranks is not None, "the program of one of several ranks"
        found = inner.new_empty((len(inner), self._down.depth))
        self._ranks.gather(inner, self._inner, found)
        return found


def _check_kinds(program: Program, op: Op) -> None:
    """Raise UnsupportedModel if the experts' matrices cannot be one matrix."""
    for roles in (("gate", "up"), ("down",)):
        names: Sequence[str] = [name for role in roles for name in op.weights[role]]
        kinds = {str(program.kinds[name]) for name in names}
        if len(kinds) > 1:
            raise UnsupportedModel(
                f"the experts of {names[0]} have weights of types {', '.join(sorted(kinds))}, but executor "
                "'gpu' supports one type per layer; use executor cpu"
            )
