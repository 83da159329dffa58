"""Check which programs have kernels, and find ops that one launch can compute together."""

from collections.abc import Mapping
from typing import Final

from galley.errors import UnsupportedModel
from galley.graph.program import Op, Program

LEAST_CAPABILITY: Final = 80
"""Minimum compute capability, 80 for 8.0: Triton compiles for no older NVIDIA GPUs."""

ELEMENTWISE: Final[Mapping[str, tuple[str, ...]]] = {
    "add": (),
    "silu_mul": (),
    "gelu_tanh_mul": (),
    "gelu_tanh": (),
    "gelu": (),
    "gelu_mul": (),
    "sigmoid_mul": (),
    "sigmoid_scale": (),
    "scale": ("factor",),
    "soft_cap": ("cap",),
    "scale_queries_by_position": ("interval", "factor"),
}
"""Elementwise op -> its attributes, in the kernel's order."""

_WIDEST_KEY: Final = 256
"""Maximum columns of a key that fit into attention tiles."""

_WIDEST_LATENT: Final = 576
"""Maximum columns of a latent key, whose first columns are the value."""

SUPPORTED: Final = frozenset(
    {"embed", "linear", "rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm", "rope"}
    | {"attention", "rope_attention", "select_rows", "columns", "head_columns", "route", "experts"}
    | {"lora", "head_linear", "join_heads", "embed_positions", "embed_types"}
    | {"encoder_attention", "features", "im2col", "encoder_rows", "cross_kv", "cross_attention"}
    | {"cross_weights", "all_gather", "embed_part"}
    | ELEMENTWISE.keys()
)
"""Ops that have kernels."""


def programs_of(program: Program) -> list[Program]:
    """Return the program with its encoder and aligner, if it has them."""
    return [one for one in (program, program.encoder, program.aligner) if one is not None]


def check_program(program: Program) -> None:
    """Raise UnsupportedModel if the executor has no kernels for the program."""
    remedy = "use executor cpu or reference"
    for op in (op for one in programs_of(program) for op in one.ops):
        if op.name not in SUPPORTED:
            raise UnsupportedModel(f"executor 'gpu' has no kernel for op {op.name} yet; {remedy}")
    for kv in program.kv:
        most = _WIDEST_LATENT if kv.shared else _WIDEST_KEY
        if max(kv.key_dim, kv.value_dim) > most:
            raise UnsupportedModel(
                f"executor 'gpu' supports keys and values of up to {most} columns, but this "
                f"model's have {max(kv.key_dim, kv.value_dim)}; {remedy}"
            )


def has_kernels(program: Program) -> bool:
    """Return whether the executor has kernels for the program."""
    try:
        check_program(program)
    except UnsupportedModel:
        return False
    return True


def gated_linears(program: Program) -> tuple[dict[int, Op], set[int]]:
    """Find each ``silu_mul`` that can be fused with the linear layer that computes both its inputs.

    No other op reads the outputs of that layer, so one launch computes both.

    Returns:
        (output of a ``silu_mul`` -> its linear layer, buffers that are no longer written).
    """
    writers = {b: op for op in program.ops for b in op.outputs}
    readers = program.readers()
    found: dict[int, Op] = {}
    fused_inputs: set[int] = set()
    for op in program.ops:
        if op.name != "silu_mul":
            continue
        views = [writers[b] for b in op.inputs]
        if [view.name for view in views] != ["columns", "columns"]:
            continue
        source, other = (view.inputs[0] for view in views)
        linear = writers[source]
        halves = [view.attrs["start"] for view in views] == [0, op.width]
        alone = len(readers[source]) == 2 and all(len(readers[b]) == 1 for b in op.inputs)
        twice = linear.name == "linear" and linear.width == 2 * op.width
        if source == other and halves and alone and twice:
            found[op.output] = linear
            fused_inputs |= {source, *op.inputs}
    return found, fused_inputs


def float32_buffers(program: Program) -> set[int]:
    """Return the buffers that are float32 whatever the activations are.

    These are logits, with the buffers that ``scale`` or ``soft_cap`` turn into them or ``all_gather`` puts
    together, and the inputs and results of ``route``: rounded logits might choose other experts, and
    bfloat16 has no numbers above 256.
    """
    writers = {b: op for op in program.ops for b in op.outputs}
    op = program.ops[-1]
    found = {*op.outputs[-1:]}
    while op.name in ("scale", "soft_cap", "all_gather"):
        op = writers[op.inputs[0]]
        found.add(op.output)
    for op in program.ops:
        if op.name == "route":
            found |= {*op.inputs, op.output}
    return found
