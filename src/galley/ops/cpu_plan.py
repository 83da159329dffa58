"""The native executor's decisions before a weight is read: weight types, passes, memory, costs."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Self

from galley import _native
from galley.errors import SettingsError
from galley.formats.weights import Kinds, WeightKind, Weights, flat
from galley.graph.passes import run_passes
from galley.graph.program import KVLayout, Program
from galley.graph.quantize_inputs import quantize_inputs
from galley.ops.executor import (
    ExecutorOptions,
)
from galley.ops.isa import choose_isa
from galley.ops.kinds import (
    input_steps,
    kinds_text,
    main_activations,
    own_kinds,
    plan_activations,
    plan_kinds,
)
from galley.ops.lowering import (
    Lowered,
    expert_costs,
    lower,
    weight_bytes,
)
from galley.ops.packing import check_kind, has_kernel, packed_bytes
from galley.quant.rtn import rounded_kind
from galley.types import BLOCK_TOKENS
from galley.types.model_info import StepCosts


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """Everything that is decided before a weight is read.

    Attributes:
        isa: instruction set of the kernels.
        program: the traced program, with the weight types of its matrices.
        activations: type that the inputs of most linear layers are rounded to.
        kinds: weight types of the matrices, as text for people.
        static_inputs: number of matrices whose inputs have a static scale.
        decoder, encoder, aligner: the programs as they run.
    """

    isa: str
    program: Program
    activations: str
    kinds: str
    static_inputs: int
    decoder: Lowered
    encoder: Lowered | None
    aligner: Lowered | None

    @classmethod
    def of(cls, program: Program, weights: Weights, options: ExecutorOptions) -> Self:
        """Plan how to run the program.

        Raises:
            SettingsError: the executor does not support the options.
            UnsupportedModel: there is no kernel for a matrix.
        """
        if options.device != "cpu":
            raise SettingsError(
                f"device is {options.device!r}, but executor 'cpu' runs on 'cpu' only"
            )
        if options.experts == "disk" and not any(op.signature.routed for op in program.ops):
            raise SettingsError("experts is 'disk', but the model has no experts; leave it out")
        isa = choose_isa(os.environ)
        program, kinds, activations = planned(program, weights, options, isa)
        for name, kind in kinds.items():
            check_kind(name, kind, flat(program.all_shapes[name])[1])

        steps = {
            name: step
            for name, step in input_steps(program, weights, options.activations).items()
            if activations[kinds[name].name] == "int8" and kinds[name].name == "int8"
        }

        def lowered(traced: Program) -> Lowered:
            rounded = quantize_inputs(traced, activations, steps)
            return lower(run_passes(rounded, options.disable_pass))

        return cls(
            isa=isa,
            program=program,
            activations=main_activations(program, activations),
            kinds=kinds_text(program, kinds),
            static_inputs=len(steps),
            decoder=lowered(program),
            encoder=None if program.encoder is None else lowered(program.encoder),
            aligner=None if program.aligner is None else lowered(program.aligner),
        )

    @property
    def programs(self) -> list[Program]:
        """The decoder, and the encoder and aligner if there are any, as they run."""
        return [
            one.program for one in (self.decoder, self.encoder, self.aligner) if one is not None
        ]


def pages_of(program: Program) -> list[tuple[KVLayout, int, int]]:
    """Return each layer's layout, its KV group, and the page that it shares with layers of other groups.

    A layer shares its page with one layer of each other group. Layers whose widths differ from those of
    their peer in the first group have separate pages.
    """
    places = {
        layer: (g, place)
        for g, group in enumerate(program.kv_groups)
        for place, layer in enumerate(group.layers)
    }
    pages: dict[object, int] = {}
    found = []
    for layer, kv in enumerate(program.kv):
        group, place = places[layer]
        page = pages.setdefault((place, replace(kv, window=0)), len(pages))
        found.append((kv, group, page))
    return found


def planned(
    program: Program, weights: Weights, options: ExecutorOptions, isa: str
) -> tuple[Program, Kinds, Mapping[str, str]]:
    """Return the program with its weight types, these types, and the input type for each of them.

    Raises:
        SettingsError: the options are not compatible; see :mod:`galley.ops.kinds`.
    """
    own = {
        n: k for n, k in own_kinds(program, weights).items() if has_kernel(k) or not k.is_integer
    }
    kinds = plan_kinds(program, options.weight_dtype, own=own, chosen=options.kinds)
    activations = plan_activations(kinds, options.weight_dtype, options.activations, isa)
    return program.with_kinds(kinds), kinds, activations


def kv_bytes_per_token(program: Program, kv_dtype: str) -> int:
    """Return the bytes of one token's keys and values over all layers, including padding."""
    return sum(kv_bytes_of_layer(kv, kv_dtype) for kv in program.kv)


def kv_bytes_of_layer(kv: KVLayout, kv_dtype: str) -> int:
    """Return the bytes of one token's keys and values in one layer, including padding."""
    return _layer_block_bytes(kv, kv_dtype) // BLOCK_TOKENS


def state_bytes(program: Program) -> int:
    """Return what :meth:`CpuExecutor.bytes_per_state` will: rows are whole vectors of sixteen floats."""
    return sum(64 * state.rows * -(-state.width // 16) for state in program.states)


def kv_bytes_per_block(program: Program, kv_dtype: str) -> int:
    """Return what :meth:`CpuExecutor.kv_bytes_per_block` will: a page for each layer of a KV group."""
    pages = {page: _layer_block_bytes(kv, kv_dtype) for kv, _, page in pages_of(program)}
    return sum(pages.values())


def _layer_block_bytes(kv: KVLayout, kv_dtype: str) -> int:
    return _native.kv_block_bytes(kv.kv_heads, kv.key_dim, kv.value_dim, kv_dtype, kv.shared)


def adapter_kind(weight_dtype: str) -> WeightKind:
    """Return the type of adapters' factors: that of the weights if they are floats, else bfloat16."""
    return rounded_kind(weight_dtype if weight_dtype in ("float32", "f16") else "bf16", 0)


def adapter_bytes(program: Program, options: ExecutorOptions) -> int:
    """Return the bytes of an adapter of the highest rank on all modules, including padding."""
    kind, rank = adapter_kind(options.weight_dtype), options.adapter_rank
    shapes = [program.shapes[name] for name in program.adapted]
    return sum(packed_bytes(kind, rank, k) + packed_bytes(kind, n, rank) for n, k in shapes)


def planned_step_costs(
    program: Program, kinds: Kinds, *, kv_dtype: str, disable_pass: Collection[str] = ()
) -> StepCosts:
    """Return what :meth:`CpuExecutor.step_costs` will, before any weight is read.

    Args:
        program: the traced program.
        kinds: weight types of its matrices; see :func:`galley.ops.kinds.plan_kinds`.
        kv_dtype: type of keys and values in the cache: "float32", "bfloat16", "int8" or "int4".
        disable_pass: names of passes that are skipped.
    """
    runs = run_passes(program.with_kinds(kinds), disable_pass)
    row_operations, logit_operations = runs.operations()
    return StepCosts(
        weight_bytes=weight_bytes(runs),
        kv_bytes_per_token=kv_bytes_per_token(program, kv_dtype),
        row_operations=row_operations,
        logit_operations=logit_operations,
        experts=expert_costs(runs),
    )
