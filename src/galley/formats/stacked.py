"""Experts that gpt-oss, Llama 4 and Granite 4 stack in one tensor, as separate tensors.

``NAME.experts.gate_up_proj`` has the columns of gate and up alternating (gpt-oss), or all of gate's first
(Llama 4). Its parts, and those of ``down_proj`` and the biases, are named as in other families:
``NAME.experts.3.gate_proj.weight``. Granite names the two stacks ``NAME.input_linear.weight`` and
``NAME.output_linear.weight``.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from galley.errors import UnsupportedModel
from galley.formats.weights import (
    MXFP4_KIND,
    WEIGHT_TYPES,
    DenseWeight,
    Mxfp4Weight,
    TensorInfo,
    Weight,
    WeightKind,
    Weights,
)

STACKED: Final = re.compile(r"(.+\.experts)\.(gate_up_proj|down_proj)(_bias)?")
GRANITE: Final = re.compile(r"(.+\.block_sparse_moe)\.(input|output)_linear\.weight")


def is_stacked(name: str) -> bool:
    """Return whether a tensor of this name holds all experts of a layer."""
    return bool(STACKED.fullmatch(name) or GRANITE.fullmatch(name))


class Part(NamedTuple):
    """One expert's part of a stacked tensor: these rows of its outputs."""

    stack: str
    expert: int
    rows: slice
    is_bias: bool


class UnstackedExperts(Weights):
    """The tensors of other weights, with stacked ones split.

    Args:
        weights: all tensors.
        outputs_last: stacked matrices are [experts, inputs, outputs], not [experts, outputs, inputs].
        by_turns: gate and up alternate; else gate comes before up.

    Raises:
        UnsupportedModel: a stacked tensor has another number of dimensions, or its values are neither
            floats nor MXFP4.
    """

    def __init__(self, weights: Weights, *, outputs_last: bool, by_turns: bool = True) -> None:
        self._weights = weights
        self._outputs_last = outputs_last
        self._by_turns = by_turns
        self._parts: dict[str, Part] = {}
        self._others: dict[str, None] = {}
        self._last: DenseWeight | Mxfp4Weight | None = None
        self.notes = weights.notes
        for name in weights:
            if found := STACKED.fullmatch(name):
                self._add(name, *found.groups())
            elif found := GRANITE.fullmatch(name):
                owner, role = found.groups()
                stack = {"input": "gate_up_proj", "output": "down_proj"}[role]
                self._add(name, f"{owner}.experts", stack, None)
            else:
                self._others[name] = None

    def _add(self, name: str, owner: str, role: str, bias: str | None) -> None:
        shape, kind = self._weights.info(name)
        if len(shape) != (2 if bias else 3) or not self._is_known(kind):
            raise UnsupportedModel(
                f"tensor {name} has shape {list(shape)} and type {kind}; expected floats of all experts"
            )
        places = {"down_proj": slice(None)}
        if role == "gate_up_proj":
            half = shape[-1 if bias or self._outputs_last else 1] // 2
            gate, up = slice(0, half), slice(half, None)
            if self._by_turns:
                gate, up = slice(0, None, 2), slice(1, None, 2)
            places = {"gate_proj": gate, "up_proj": up}
        for part, rows in places.items():
            for expert in range(shape[0]):
                made = f"{owner}.{expert}.{part}.{'bias' if bias else 'weight'}"
                self._parts[made] = Part(name, expert, rows, bool(bias))

    def _is_known(self, kind: WeightKind) -> bool:
        """Return whether a stack of this kind can be split: MXFP4 only along outputs."""
        return kind.is_dense or (kind.name == MXFP4_KIND and not self._outputs_last)

    def info(self, name: str) -> TensorInfo:
        """Return shape and kind; see :class:`Weights`."""
        part = self._parts.get(name)
        if part is None:
            return self._weights.info(self._other(name))
        shape, kind = self._weights.info(part.stack)
        if part.is_bias:
            return TensorInfo((_count(part.rows, shape[1]),), kind)
        depth, outputs = shape[1:] if self._outputs_last else shape[:0:-1]
        return TensorInfo((_count(part.rows, outputs), depth), kind)

    def __getitem__(self, name: str) -> Weight:
        part = self._parts.get(name)
        if part is None:
            return self._weights[self._other(name)]
        stack = self._stack(part.stack)
        if isinstance(stack, Mxfp4Weight):
            experts = self._weights.info(part.stack).shape[0]
            codes, scales = (
                np.ascontiguousarray(
                    whole.reshape(experts, -1, whole.shape[1])[part.expert][part.rows]
                )
                for whole in (stack.codes, stack.scales)
            )
            return Mxfp4Weight(name, codes, stack.group, scales)
        values = stack.data.view(f"<u{WEIGHT_TYPES[stack.dtype]}").reshape(stack.shape)[part.expert]
        if self._outputs_last and not part.is_bias:
            values = values.T
        values = np.ascontiguousarray(values[part.rows])
        return DenseWeight(name, stack.dtype, values.shape, values.reshape(-1).view(np.uint8))

    def _other(self, name: str) -> str:
        if name not in self._others:
            raise KeyError(name)
        return name

    def _stack(self, name: str) -> DenseWeight | Mxfp4Weight:
        """Return the whole tensor, kept until another is requested, as all experts are unpacked at once."""
        if self._last is None or self._last.name != name:
            self._last = None
            weight = self._weights[name]
            assert isinstance(weight, DenseWeight | Mxfp4Weight)
            self._last = weight
        return self._last

    def __iter__(self) -> Iterator[str]:
        yield from self._others
        yield from self._parts

    def __len__(self) -> int:
        return len(self._others) + len(self._parts)


def _count(rows: slice, outputs: int) -> int:
    return len(range(*rows.indices(outputs)))
