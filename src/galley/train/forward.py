"""A traced program with gradients: the ops of dense decoders in torch, on whole texts.

It interprets the same list of ops that executors run (:mod:`galley.graph.signatures` defines each), so a
family that can be served can be trained. Texts are the rows of a matrix, padded at the end: attention is
causal, so no token sees the padding.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from galley.errors import UnsupportedModel
from galley.graph.program import Op, Program

Angles = dict[tuple[tuple[float, ...], float], tuple[Tensor, Tensor]]


@dataclass(slots=True)
class _Step:
    """The state of texts that run through a program.

    Attributes:
        weights: tensor name -> values.
        ids: [texts, tokens].
        wanted: [texts, tokens] whether logits are wanted there.
        angles: (cos, sin) of rotations, [tokens, 1, len(inv_freq)]; shared by all layers.
        masks: window -> [tokens, tokens] which tokens see which.
    """

    weights: Mapping[str, Tensor]
    ids: Tensor
    wanted: Tensor
    angles: Angles = field(default_factory=dict)
    masks: dict[int, Tensor] = field(default_factory=dict)

    def weight(self, op: Op, role: str = "weight") -> Tensor:
        """Return the tensor that an op has in a role."""
        return self.weights[op.tensor(role)]


def check_trainable(program: Program) -> None:
    """Raise UnsupportedModel if the program has an op that cannot be trained through."""
    unknown = sorted({op.name for op in program.ops} - OPS.keys())
    if any(kv.chunked for kv in program.kv):
        unknown.append("attention in chunks")
    if program.encoder is not None or unknown:
        raise UnsupportedModel(
            "training supports dense text models only; this model "
            + (f"has {', '.join(unknown)}" if unknown else "is a speech model")
        )


def logits_of(
    program: Program, weights: Mapping[str, Tensor], ids: Tensor, wanted: Tensor
) -> Tensor:
    """Return the program's logits [wanted rows, vocab] at the selected tokens, text after text.

    Args:
        program: a text model's program, as traced (:func:`check_trainable`).
        weights: its tensors by name, in float32.
        ids: [texts, tokens] int64; each text from its beginning, with any ids after its end.
        wanted: [texts, tokens] bool.
    """
    step = _Step(weights, ids, wanted)
    last_use = {b: i for i, op in enumerate(program.ops) for b in op.inputs}
    buffers: dict[int, Tensor] = {}
    for i, op in enumerate(program.ops):
        result = OPS[op.name](op, step, [buffers[b] for b in op.inputs])
        buffers[op.output] = result
        for b in op.inputs:
            if last_use[b] == i:
                buffers.pop(b, None)
    return result


def _embed(op: Op, step: _Step, inputs: list[Tensor]) -> Tensor:
    return functional.embedding(step.ids, step.weight(op))


def _linear(op: Op, step: _Step, inputs: list[Tensor]) -> Tensor:
    bias = step.weight(op, "bias") if "bias" in op.weights else None
    return functional.linear(inputs[0], step.weight(op), bias)


def _heads(x: Tensor, dim: int) -> Tensor:
    """Return [texts, tokens, width] as [texts, tokens, heads, dim]."""
    return x.view(*x.shape[:-1], -1, dim)


def _rms_norm(op: Op, step: _Step, inputs: list[Tensor]) -> Tensor:
    (x,), dim = inputs, op.attrs["head_dim"]
    weight = step.weight(op) + op.attrs["offset"] if op.weights else None
    heads = _heads(x, dim)
    return functional.rms_norm(heads, (dim,), weight, op.attrs["eps"]).flatten(-2)


def _layer_norm(op: Op, step: _Step, inputs: list[Tensor]) -> Tensor:
    (x,), dim = inputs, op.attrs["head_dim"]
    normed = functional.layer_norm(_heads(x, dim), (dim,), eps=op.attrs["eps"]).flatten(-2)
    # Heads with separate weights store them as a matrix.
    scaled = normed * step.weight(op).flatten()
    return scaled + step.weight(op, "bias").flatten() if "bias" in op.weights else scaled


def _rope(op: Op, step: _Step, inputs: list[Tensor]) -> Tensor:
    (x,), dim, inv_freq = inputs, op.attrs["head_dim"], op.attrs["inv_freq"]
    key = (inv_freq, op.attrs["scale"])
    if key not in step.angles:
        positions = torch.arange(x.shape[1], dtype=torch.float32, device=x.device)
        turns = positions[:, None, None] * torch.tensor(inv_freq, device=x.device)
        step.angles[key] = (turns.cos() * op.attrs["scale"], turns.sin() * op.attrs["scale"])
    cos, sin = step.angles[key]
    pairs = len(inv_freq)
    # A pair is one column of each half, or two neighboring columns.
    shape, members = ((pairs, 2), -1) if op.attrs["adjacent"] else ((2, pairs), -2)
    turning, rest = torch.split(_heads(x, dim), [2 * pairs, dim - 2 * pairs], dim=-1)
    a, b = turning.reshape(*turning.shape[:-1], *shape).unbind(members)
    turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=members)
    return torch.cat((turned.flatten(-2), rest), dim=-1).flatten(-2)


def _attention(op: Op, step: _Step, inputs: list[Tensor]) -> Tensor:
    attrs = op.attrs
    dims = (attrs["key_dim"], attrs["key_dim"], attrs["value_dim"])
    q, k, v = (_heads(x, dim).transpose(1, 2) for x, dim in zip(inputs, dims, strict=True))
    groups = attrs["heads"] // attrs["kv_heads"]
    k, v = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (k, v))
    if cap := attrs["cap"]:
        scores = torch.tanh(q @ k.transpose(-1, -2) * attrs["scale"] / cap) * cap
        hidden = ~_mask(step, attrs["window"])
        mixed = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
    elif attrs["window"]:
        mask = _mask(step, attrs["window"])
        mixed = functional.scaled_dot_product_attention(q, k, v, mask, scale=attrs["scale"])
    else:
        mixed = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=attrs["scale"]
        )
    joined: Tensor = mixed.transpose(1, 2).flatten(-2)
    return joined


def _mask(step: _Step, window: int) -> Tensor:
    """Return the mask [tokens, tokens]: whether a row's token sees a column's."""
    if window not in step.masks:
        at = torch.arange(step.ids.shape[1], device=step.ids.device)
        behind = at[:, None] - at
        step.masks[window] = (behind >= 0) & (behind < (window or len(at) + 1))
    return step.masks[window]


def _silu_mul(op: Op, step: _Step, inputs: list[Tensor]) -> Tensor:
    return functional.silu(inputs[0]) * inputs[1]


def _gelu_tanh_mul(op: Op, step: _Step, inputs: list[Tensor]) -> Tensor:
    return functional.gelu(inputs[0], approximate="tanh") * inputs[1]


def _gelu(op: Op, step: _Step, inputs: list[Tensor]) -> Tensor:
    return functional.gelu(inputs[0])


def _gelu_tanh(op: Op, step: _Step, inputs: list[Tensor]) -> Tensor:
    return functional.gelu(inputs[0], approximate="tanh")


def _add(op: Op, step: _Step, inputs: list[Tensor]) -> Tensor:
    return inputs[0] + inputs[1]


def _scale(op: Op, step: _Step, inputs: list[Tensor]) -> Tensor:
    return inputs[0] * float(op.attrs["factor"])


def _soft_cap(op: Op, step: _Step, inputs: list[Tensor]) -> Tensor:
    cap = float(op.attrs["cap"])
    return torch.tanh(inputs[0] / cap) * cap


def _columns(op: Op, step: _Step, inputs: list[Tensor]) -> Tensor:
    return inputs[0].narrow(-1, op.attrs["start"], op.width)


def _head_columns(op: Op, step: _Step, inputs: list[Tensor]) -> Tensor:
    heads = _heads(inputs[0], op.attrs["stride"])
    return heads.narrow(-1, op.attrs["start"], op.attrs["size"]).flatten(-2)


def _select_rows(op: Op, step: _Step, inputs: list[Tensor]) -> Tensor:
    return inputs[0][step.wanted]


OPS: Final[Mapping[str, Callable[[Op, _Step, list[Tensor]], Tensor]]] = {
    "embed": _embed,
    "linear": _linear,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "rope": _rope,
    "attention": _attention,
    "silu_mul": _silu_mul,
    "gelu_tanh_mul": _gelu_tanh_mul,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "add": _add,
    "scale": _scale,
    "soft_cap": _soft_cap,
    "columns": _columns,
    "head_columns": _head_columns,
    "select_rows": _select_rows,
}
"""Ops with gradients: those of dense decoders."""
