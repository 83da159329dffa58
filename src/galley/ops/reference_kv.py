"""Keys and values rounded as by an integer cache: the reference for the native executor's cache."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self

import torch

from galley.formats.weights import Weights
from galley.graph.program import Program
from galley.ops.key_factors import key_factors

_LEAST_SPAN: Final = 1e-30
"""Smallest span; division by a smaller one would overflow, so all values of the row count as equal."""


@dataclass(frozen=True, slots=True)
class KVRounding:
    """Rounds the keys and values of a token to ``kv_dtype``, head by head.

    Attributes:
        rounded: function from rows of floats [..., dim] to the values that the cache returns.
        factors: [kv_heads, key_dim] for each layer, by which keys are divided first; empty means 1.
        stretches: :attr:`KVLayout.stretches` of each layer; empty means all columns of a key together.
    """

    rounded: Callable[[torch.Tensor], torch.Tensor]
    factors: tuple[torch.Tensor, ...] = ()
    stretches: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(
        cls, kv_dtype: str, program: Program, weights: Weights, device: torch.device
    ) -> Self | None:
        """Return the rounding of ``kv_dtype``, or None if that is not an integer type."""
        if kv_dtype not in ROUNDINGS:
            return None
        found = key_factors(program, weights) if kv_dtype == "int4" else []
        factors = tuple(torch.from_numpy(of_layer).to(device) for of_layer in found)
        return cls(ROUNDINGS[kv_dtype], factors, tuple(kv.stretches for kv in program.kv))

    def keys(self, rows: torch.Tensor, layer: int) -> torch.Tensor:
        """Round keys [tokens, kv_heads, key_dim]."""
        factors = self.factors[layer] if self.factors else 1
        stretches = self.stretches[layer] if self.stretches else rows.shape[-1:]
        parts = torch.split(rows.float() / factors, list(stretches), dim=-1)
        return (torch.cat([self.rounded(part) for part in parts], dim=-1) * factors).to(rows.dtype)

    def values(self, rows: torch.Tensor) -> torch.Tensor:
        """Round values [tokens, kv_heads, value_dim]."""
        return self.rounded(rows.float()).to(rows.dtype)


def round_int8(rows: torch.Tensor) -> torch.Tensor:
    """Round each row to integers from -127 to 127 times a scale."""
    most = rows.abs().amax(dim=-1, keepdim=True).clamp_min(_LEAST_SPAN)
    return torch.round(rows * (127 / most)) * (most / 127)


def round_int4(rows: torch.Tensor) -> torch.Tensor:
    """Round each row to low + scale * n, with n from 0 to 15.

    Low and scale are bfloat16, rounded so that no value is out of this range.
    """
    low = _bf16_below(rows.amin(dim=-1, keepdim=True))
    span = rows.amax(dim=-1, keepdim=True) - low
    scale = -_bf16_below(-(span / 15))
    steps = torch.round((rows - low) * (1 / scale))
    return torch.where(span <= _LEAST_SPAN, low, low + scale * steps)


def _bf16_below(x: torch.Tensor) -> torch.Tensor:
    """Return the greatest bfloat16 that is at most x."""
    bits = x.view(torch.int32)
    cut = bits & -0x10000
    return torch.where(cut.view(torch.float32) > x, cut + 0x10000, cut).view(torch.float32)


ROUNDINGS: Final[Mapping[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "int8": round_int8,
    "int4": round_int4,
}
"""Rounding functions by the name of the integer type in the setting ``kv_dtype``."""
