"""The steps of ops that exchange rows with the other ranks of a divided model."""

import itertools

import torch

from galley.graph.program import Op
from galley.ops.triton.parts import Parts, Run, Step


def all_gather(parts: Parts, op: Op) -> Step:
    """Put the columns of all ranks side by side; elsewhere than at rank 0 not those that only it needs."""
    ranks, widths = parts.ranks, op.attrs["ranks"]
    assert ranks is not None, "the program of one of several ranks"
    needed = not op.attrs["leader_only"] or ranks.rank == 0

    def step(run: Run) -> None:
        x = run.buffers[op.inputs[0]]
        out = parts.new(op.output, len(x)) if needed else None
        ranks.gather(x, widths, out)
        run.buffers[op.output] = x if out is None else out

    return step


def embed_part(parts: Parts, op: Op) -> Step:
    """Copy the tokens' rows of this rank's part of the table, and take each from the rank that has it."""
    ranks, table = parts.ranks, parts.matrix(op)
    assert ranks is not None, "the program of one of several ranks"
    ends = list(itertools.accumulate(op.attrs["ranks"]))
    begin, last = ends[ranks.rank] - table.outputs, table.outputs - 1
    bounds = torch.tensor(ends, dtype=torch.int32, device=parts.device.torch)

    def step(run: Run) -> None:
        tokens = run.batch.tokens
        out = parts.new(op.output, len(tokens))
        if len(tokens):
            table.gather(parts.device, (tokens - begin).clamp_(0, last), out)
            rows = torch.arange(len(tokens), device=tokens.device)
            out = ranks.gather_all(out)[torch.bucketize(tokens, bounds, right=True), rows]
        run.buffers[op.output] = out

    return step
