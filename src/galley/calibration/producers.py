"""Producers of linear layers' inputs, where the producer can be scaled instead of the inputs."""

from dataclasses import dataclass

from galley.graph.program import Program


@dataclass(frozen=True, slots=True)
class Producer:
    """Tensors whose columns or rows are the columns of a buffer.

    Attributes:
        rows: a matrix whose outputs they are, or None.
        vectors: vectors of their width: the weight of a norm, or the bias of the matrix.
    """

    rows: str | None
    vectors: tuple[str, ...]


def producer_of(program: Program, buffer: int) -> Producer | None:
    """Return the producer of a buffer that only linear layers read; None where nothing can be scaled."""
    readers = [program.ops[i] for i in program.readers()[buffer]]
    if any(op.name != "linear" for op in readers):
        return None
    writers = {b: op for op in program.ops for b in op.outputs}
    op = writers[buffer]
    if op.name == "rms_norm" and op.attrs["head_dim"] == op.width and not op.attrs["offset"]:
        return Producer(None, op.weights["weight"])
    if op.name == "layer_norm" and op.attrs["head_dim"] == op.width and "bias" not in op.weights:
        return Producer(None, op.weights["weight"])
    if op.name in ("silu_mul", "gelu_tanh_mul", "gelu_mul"):  # linear in the second input
        source = op.inputs[1]
        made = writers[source]
        if made.name == "linear" and len(program.readers()[source]) == 1:
            return Producer(made.tensor("weight"), made.weights.get("bias", ()))
    return None
