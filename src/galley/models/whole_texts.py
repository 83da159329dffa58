"""A model's program over whole texts: rows of its last layer instead of logits, without a KV cache."""

import dataclasses
from collections.abc import Callable, Iterable

from galley.errors import UnsupportedModel
from galley.graph.program import Op, Program


def over_whole_texts(program: Program, names: Iterable[str], *, all_rows: bool) -> Program:
    """Convert the program of an encoder or a decoder to one that makes rows of texts.

    Args:
        program: the program that its family traces; a decoder's ends in logits.
        names: names of the checkpoint's tensors. If it was saved without its head, or with it, they
            have other prefixes than the family's.
        all_rows: return the rows of all tokens, not only the wanted ones.

    Raises:
        UnsupportedModel: its type of attention is only supported for generation.
    """
    ops = [_without_cache(op) for op in _before_logits(program)]
    if all_rows:
        [at] = (i for i, op in enumerate(ops) if op.name == "select_rows")
        [x], y = ops[at].inputs, ops[at].output
        ops = [*ops[:at], *(op.reading({y: x}) for op in ops[at + 1 :])]
    rename = _names(program, frozenset(names))
    ops = [
        dataclasses.replace(
            op, weights={role: tuple(map(rename, kept)) for role, kept in op.weights.items()}
        )
        for op in ops
    ]
    used = {name for op in ops for kept in op.weights.values() for name in kept}
    shapes = {rename(name): shape for name, shape in program.shapes.items()}
    return dataclasses.replace(
        program,
        kv=(),
        shapes={name: shape for name, shape in shapes.items() if name in used},
        vocab_size=ops[-1].widths[-1],
    ).with_ops(ops)


def _before_logits(program: Program) -> list[Op]:
    """Return all ops of an encoder, or those of a decoder up to the norm of its wanted rows."""
    ops = list(program.ops)
    at = next(i for i, op in enumerate(ops) if op.name == "select_rows")
    head = (i for i, op in enumerate(ops) if i > at and op.name == "linear")
    return ops[: next(head, len(ops))]


def _without_cache(op: Op) -> Op:
    """Replace an op of cached attention by causal attention over the text itself."""
    if op.name != "attention":
        if "layer" in op.attrs or "state" in op.attrs:
            raise UnsupportedModel(
                f"op {op.name} needs a cache and is not supported for embeddings"
            )
        return op
    attrs = dict(op.attrs)
    if attrs.pop("cap"):
        raise UnsupportedModel("capped attention scores are not supported for embeddings")
    if attrs.pop("chunked"):
        raise UnsupportedModel("chunked attention is not supported for embeddings")
    del attrs["layer"]
    window = attrs.pop("window")
    attrs |= {"before": window - 1 if window else -1, "after": 0, "exact": True}
    return dataclasses.replace(op, name="encoder_attention", attrs=attrs)


def _names(program: Program, names: frozenset[str]) -> Callable[[str], str]:
    """Return a function from the family's name of a tensor to that in the checkpoint.

    The prefixes are determined from the name of the embedding.
    """
    [table] = {op.tensor("weight") for op in program.ops if op.name == "embed"}
    if table in names:
        return lambda name: name
    bare = table.removeprefix("model.")
    if bare in names:
        return lambda name: name.removeprefix("model.")
    before = sorted(name.removesuffix(bare) for name in names if name.endswith(f".{bare}"))
    return lambda name: (before[0] if before else "") + name
