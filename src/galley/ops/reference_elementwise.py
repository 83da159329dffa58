"""Reference ops in torch that have no weights and compute each output row from the same input rows."""

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch.nn.functional import gelu, silu

from galley.graph.program import Op


def _silu_mul(op: Op, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return silu(a) * b


def _gelu_tanh_mul(op: Op, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return gelu(a, approximate="tanh") * b


def _gelu_tanh(op: Op, x: torch.Tensor) -> torch.Tensor:
    return gelu(x.float(), approximate="tanh").to(x.dtype)


def _gelu_mul(op: Op, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return gelu(a.float()).to(a.dtype) * b


def _gelu(op: Op, x: torch.Tensor) -> torch.Tensor:
    return gelu(x.float()).to(x.dtype)


def _sigmoid_mul(op: Op, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(a) * b


def _sigmoid_scale(op: Op, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(gate)


def _add(op: Op, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


def _scale(op: Op, x: torch.Tensor) -> torch.Tensor:
    scaled: torch.Tensor = x * op.attrs["factor"]
    return scaled


def _soft_cap(op: Op, x: torch.Tensor) -> torch.Tensor:
    capped: torch.Tensor = torch.tanh(x / op.attrs["cap"]) * op.attrs["cap"]
    return capped


def _columns(op: Op, x: torch.Tensor) -> torch.Tensor:
    start = op.attrs["start"]
    return x[:, start : start + op.width].clone()


def _head_columns(op: Op, x: torch.Tensor) -> torch.Tensor:
    start = op.attrs["start"]
    heads = x.view(len(x), -1, op.attrs["stride"])
    return heads[..., start : start + op.attrs["size"]].reshape(len(x), -1).clone()


ELEMENTWISE: Final[Mapping[str, Callable[..., torch.Tensor]]] = {
    "silu_mul": _silu_mul,
    "gelu_tanh_mul": _gelu_tanh_mul,
    "gelu_tanh": _gelu_tanh,
    "gelu_mul": _gelu_mul,
    "gelu": _gelu,
    "sigmoid_mul": _sigmoid_mul,
    "sigmoid_scale": _sigmoid_scale,
    "add": _add,
    "scale": _scale,
    "soft_cap": _soft_cap,
    "columns": _columns,
    "head_columns": _head_columns,
}
"""Name of the op -> function of (op, [rows, width] of each input) that returns [rows, width]."""
