"""The steps of ops whose rows have matrices of their own: experts, adapters, matrices of heads."""

import torch

from galley.graph.program import Op
from galley.ops.triton.experts import Experts, Route, group_heads, group_rows, multiply_groups
from galley.ops.triton.packing import join, pack
from galley.ops.triton.parts import Parts, Run, Step


def route(parts: Parts, op: Op) -> Step:
    """Choose the experts of each row."""
    route = Route(op.attrs, parts.vector(op, "bias"))

    def step(run: Run) -> None:
        logits = run.buffers[op.inputs[0]]
        out = parts.new(op.output, len(logits))
        if len(logits):
            route(logits, out)
        run.buffers[op.output] = out

    return step


def experts(parts: Parts, op: Op) -> Step:
    """Compute the experts of each row and add them up."""
    experts = Experts(parts.program, op, parts.weights, parts.dtype, parts.device, parts.ranks)
    parts.expert_layers.append(experts)

    def step(run: Run) -> None:
        x, routes = (run.buffers[b] for b in op.inputs)
        out = parts.new(op.output, len(x))
        if len(x):
            experts(x, routes, out)
        run.buffers[op.output] = out

    return step


def lora(parts: Parts, op: Op) -> Step:
    """Add what the adapters of rows make of the input of a linear layer, in place."""
    adapters = parts.adapters
    assert adapters is not None, "programs with lora ops have adapters"

    def step(run: Run) -> None:
        y, x = (run.buffers[b] for b in op.inputs)
        if run.slots is not None and len(x):
            if 0 not in run.groups:
                run.groups[0] = group_rows(run.slots, 1, adapters.slots, parts.device)
            adapters.add(op, run.groups[0], x, y)
        run.buffers[op.output] = y

    return step


def head_linear(parts: Parts, op: Op) -> Step:
    """Multiply each head's columns by the head's matrix, as experts that every row goes to."""
    names, kinds = op.weights["weight"], parts.program.kinds
    matrix = join(
        [
            pack([parts.weights[name]], kinds[name], parts.dtype, parts.device.torch)
            for name in names
        ]
    )
    parts.matrices[(names, op.output)] = matrix
    heads = len(names)

    def step(run: Run) -> None:
        x = run.buffers[op.inputs[0]]
        out = parts.new(op.output, len(x))
        if len(x):
            if heads not in run.groups:
                run.groups[heads] = group_heads(len(x), heads, parts.device)
            both = x.reshape(len(x) * heads, -1), out.view(len(x) * heads, -1)
            multiply_groups(matrix, run.groups[heads], parts.device, *both, divide=False)
        run.buffers[op.output] = out

    return step


def join_heads(parts: Parts, op: Op) -> Step:
    """Put the heads of two buffers side by side."""
    heads = op.attrs["heads"]

    def step(run: Run) -> None:
        a, b = (run.buffers[i].reshape(len(run.buffers[i]), heads, -1) for i in op.inputs)
        run.buffers[op.output] = torch.cat((a, b), dim=2).view(len(a), -1)

    return step
