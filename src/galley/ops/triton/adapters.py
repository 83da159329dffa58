"""LoRA adapters on the device: the factors of every slot, and the launches that add them to layers."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch

from galley.errors import UnsupportedModel
from galley.formats.adapter import AdapterWeights
from galley.graph.program import Op, Program
from galley.ops.triton.experts import Groups, multiply_groups
from galley.ops.triton.matrices import Matrix
from galley.ops.triton.packing import dense_matrix, on_device
from galley.ops.triton.tiles import Device

PackedAdapter: TypeAlias = Sequence[tuple[int, torch.Tensor, torch.Tensor]]
"""Number of a module, and its factors [rank, depth] and [outputs, rank], the latter times the scale."""


class _Module(NamedTuple):
    """The factors of all slots: [slots * rank, depth] and [slots * outputs, rank]."""

    a: Matrix
    b: Matrix


class Adapters:
    """The slots of a program's adapters.

    A slot's factors have the highest rank that is allowed. Rows and columns beyond an adapter's own are
    zeros, which change no bit of a sum.
    """

    def __init__(
        self, program: Program, slots: int, rank: int, dtype: torch.dtype, device: Device
    ) -> None:
        """Allocate the factors, zeroed."""
        self.slots = slots
        self._rank, self._dtype, self._device = rank, dtype, device
        self._numbers = {name: number for number, name in enumerate(program.adapted)}

        def zeros(rows: int, columns: int) -> Matrix:
            return dense_matrix(
                torch.zeros((slots * rows, columns), dtype=dtype, device=device.torch)
            )

        self._modules = {
            number: _Module(zeros(rank, depth), zeros(width, rank))
            for number, depth, width in _modules(program)
        }

    def pack(self, adapter: AdapterWeights) -> PackedAdapter:
        """Convert an adapter for :meth:`set`.

        Raises:
            UnsupportedModel: a value is out of range of the activations' type.
        """
        packed = []
        for name, own in adapter.items():
            a, b = (on_device(part, torch.device("cpu")).float() for part in (own.a, own.b))
            factors = a.to(self._dtype), (b * own.scale).to(self._dtype)
            if not all(bool(factor.isfinite().all()) for factor in factors):
                raise UnsupportedModel(
                    f"the adapter's factors of {name} are out of range of "
                    f"{str(self._dtype).removeprefix('torch.')}; set activations to bfloat16"
                )
            packed.append((self._numbers[name], *factors))
        return packed

    def set(self, slot: int, packed: PackedAdapter) -> None:
        """Put an adapter into a slot; an empty one adds nothing."""
        for a, b in self._modules.values():
            self._slot(a, slot).zero_()
            self._slot(b, slot).zero_()
        for number, own_a, own_b in packed:
            a, b = self._modules[number]
            self._slot(a, slot)[: len(own_a)] = own_a
            self._slot(b, slot)[:, : own_b.shape[1]] = own_b

    def _slot(self, matrix: Matrix, slot: int) -> torch.Tensor:
        each = matrix.outputs // self.slots
        return matrix.values[slot * each : (slot + 1) * each]

    def add(self, op: Op, groups: Groups, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add to y what the adapters of its rows make of x.

        Args:
            op: the ``lora`` op.
            groups: the rows, grouped by slot.
            x: [rows, depth].
            y: [rows, width].
        """
        low = torch.empty((len(x), self._rank), dtype=x.dtype, device=x.device)
        for number, start, width in op.attrs["modules"]:
            a, b = self._modules[number]
            multiply_groups(a, groups, self._device, x, low, divide=False)
            out = y[:, start : start + width]
            multiply_groups(b, groups, self._device, low, out, divide=False, add=True)


def adapter_bytes(program: Program, rank: int, dtype: torch.dtype) -> int:
    """Return the bytes of a slot."""
    return sum(rank * (depth + width) for _, depth, width in _modules(program)) * dtype.itemsize


def _modules(program: Program) -> list[tuple[int, int, int]]:
    """Return (number, depth, outputs) of every module."""
    return [
        (number, int(op.attrs["depth"]), width)
        for op in program.ops
        if op.name == "lora"
        for number, _, width in op.attrs["modules"]
    ]
