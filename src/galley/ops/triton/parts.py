"""The parts that the steps of a program share: packed weights, caches, buffers of a running step."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import torch

from galley.formats.weights import Weights
from galley.graph.program import Op, Program
from galley.ops.triton.adapters import Adapters
from galley.ops.triton.attention import Cache
from galley.ops.triton.experts import Experts, Groups
from galley.ops.triton.matrices import Matrix
from galley.ops.triton.packing import pack, vector
from galley.ops.triton.step_batch import StepBatch
from galley.ops.triton.supported import float32_buffers
from galley.ops.triton.tiles import Device

if TYPE_CHECKING:
    from galley.ops.triton.ranks import TensorRanks


@dataclass(slots=True)
class Run:
    """A running step.

    Attributes:
        batch: the batch.
        slots: of the rows of the buffers in use, the slots of their adapters; None if no row has one.
        buffers: the buffers that are still needed.
        groups: the rows by slot (key 0), and the heads of rows by head (key: number of heads), once needed.
        later: the batches that the rows of an encoder become, one after another.
        features: [frames, mels] of an encoder's inputs.
        given: the rows that an encoder returns to its caller.
        attention: [rows, heads, encoder rows] the weights that an aligner returns.
    """

    batch: StepBatch
    slots: torch.Tensor | None
    buffers: dict[int, torch.Tensor] = field(default_factory=dict)
    groups: dict[int, Groups] = field(default_factory=dict)
    later: list[StepBatch] = field(default_factory=list)
    features: torch.Tensor | None = None
    given: torch.Tensor | None = None
    attention: torch.Tensor | None = None


Step: TypeAlias = Callable[[Run], None]


class Parts:
    """The packed weights and the caches of a program, and the types of its buffers.

    Attributes:
        program: the program, which has been through all passes.
        weights: its tensors.
        dtype: type of rows between ops.
        device: the device of everything.
        kv_bits: bits of an element of integer caches; 0: they have floats.
        adapters: the slots of adapters; None if the program has no ``lora`` ops.
        ranks: exchanges rows with the other ranks; None if the program is whole.
        matrices: packed matrices, by what is packed.
        expert_layers: the packed experts of each layer.
        caches: keys and values of each layer, once they are allocated.
        group_of: layer -> its KV group.
    """

    def __init__(
        self,
        program: Program,
        weights: Weights,
        dtype: torch.dtype,
        device: Device,
        *,
        kv_bits: int,
        adapters: Adapters | None,
        ranks: "TensorRanks | None" = None,
    ) -> None:
        self.program, self.weights, self.dtype, self.device = program, weights, dtype, device
        self.kv_bits, self.adapters, self.ranks = kv_bits, adapters, ranks
        self._widths, self._float32 = program.widths(), float32_buffers(program)
        self.matrices: dict[tuple[object, ...], Matrix] = {}
        self.expert_layers: list[Experts] = []
        self.caches: list[Cache] = []
        self.group_of = {
            layer: g for g, group in enumerate(program.kv_groups) for layer in group.layers
        }

    def sharing(self, program: Program) -> "Parts":
        """Return the parts of another program of the same model, with these caches and matrices."""
        made = Parts(
            program,
            self.weights,
            self.dtype,
            self.device,
            kv_bits=self.kv_bits,
            adapters=self.adapters,
        )
        made.matrices, made.caches = self.matrices, self.caches
        return made

    def new(self, b: int, rows: int) -> torch.Tensor:
        """Return room for ``rows`` rows of buffer ``b``."""
        dtype = torch.float32 if b in self._float32 else self.dtype
        return torch.empty((rows, self._widths[b]), dtype=dtype, device=self.device.torch)

    def matrix(self, op: Op, *, gated: bool = False) -> Matrix:
        """Return the packed matrix of an op; ``gated`` interleaves its halves."""
        names, biases = op.weights["weight"], op.weights.get("bias", ())
        key = (names, biases, gated)
        if key not in self.matrices:
            made = pack(
                [self.weights[name] for name in names],
                self.program.kind_of(op),
                self.dtype,
                self.device.torch,
                bias=[self.weights[name] for name in biases],
                gated=gated,
            )
            whole = sum(self.weights.whole_rows(name) for name in names)
            self.matrices[key] = replace(made, whole=whole)
        return self.matrices[key]

    def vector(self, op: Op, role: str, offset: float = 0.0) -> torch.Tensor | None:
        """Return the weights of a role, flat in float32, plus ``offset``; None if the op has none."""
        if role not in op.weights:
            return None
        parts = [vector(self.weights[name], self.device.torch) for name in op.weights[role]]
        return torch.cat(parts) + offset
