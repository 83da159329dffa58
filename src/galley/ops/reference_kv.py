"""Keys and values as an integer cache gives them back: the truth for the native executor's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self

import torch

from galley.formats.weights import Weights
from galley.graph.program import Program
from galley.ops.key_factors import key_factors

_LEAST_SPAN: Final = 1e-30
"""Below, quotients by it would overflow: such a row has one value for every purpose."""


@dataclass(frozen=True, slots=True)
class KVRounding:
    """How ``kv_dtype`` rounds the keys and values of a token, head by head.

    Attributes:
        rounded: rows of floats [..., dim] -> what the cache gives back of them.
        factors: of each layer [kv_heads, key_dim], by which keys are divided before; empty: 1.
        stretches: of each layer (:attr:`KVLayout.stretches`); empty: all columns of a key.
    """

    rounded: Callable[[torch.Tensor], torch.Tensor]
    factors: tuple[torch.Tensor, ...] = ()
    stretches: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(
        cls, kv_dtype: str, program: Program, weights: Weights, device: torch.device
    ) -> Self | None:
        """None if ``kv_dtype`` is no type of integers."""
        if kv_dtype not in ROUNDINGS:
            return None
        found = key_factors(program, weights) if kv_dtype == "int4" else []
        factors = tuple(torch.from_numpy(of_layer).to(device) for of_layer in found)
        return cls(ROUNDINGS[kv_dtype], factors, tuple(kv.stretches for kv in program.kv))

    def keys(self, rows: torch.Tensor, layer: int) -> torch.Tensor:
        """Of [tokens, kv_heads, key_dim]."""
        factors = self.factors[layer] if self.factors else 1
        stretches = self.stretches[layer] if self.stretches else rows.shape[-1:]
        parts = torch.split(rows.float() / factors, list(stretches), dim=-1)
        return (torch.cat([self.rounded(part) for part in parts], dim=-1) * factors).to(rows.dtype)

    def values(self, rows: torch.Tensor) -> torch.Tensor:
        """Of [tokens, kv_heads, value_dim]."""
        return self.rounded(rows.float()).to(rows.dtype)


def round_int8(rows: torch.Tensor) -> torch.Tensor:
    """Integers from -127 to 127 times one scale a row."""
    most = rows.abs().amax(dim=-1, keepdim=True).clamp_min(_LEAST_SPAN)
    return torch.round(rows * (127 / most)) * (most / 127)


def round_int4(rows: torch.Tensor) -> torch.Tensor:
    """Of each row low + scale * n, n from 0 to 15. Low and scale are bfloat16; nothing lies beyond them."""
    low = _bf16_below(rows.amin(dim=-1, keepdim=True))
    span = rows.amax(dim=-1, keepdim=True) - low
    scale = -_bf16_below(-(span / 15))
    steps = torch.round((rows - low) * (1 / scale))
    return torch.where(span <= _LEAST_SPAN, low, low + scale * steps)


def _bf16_below(x: torch.Tensor) -> torch.Tensor:
    """The greatest bfloat16 that is at most x."""
    bits = x.view(torch.int32)
    cut = bits & -0x10000
    return torch.where(cut.view(torch.float32) > x, cut + 0x10000, cut).view(torch.float32)


ROUNDINGS: Final[Mapping[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "int8": round_int8,
    "int4": round_int4,
}
"""Types of integers, by the name that the setting ``kv_dtype`` has for them."""
