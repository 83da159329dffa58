"""The recurrence of one token, in torch: from a state and an input row to the next state and a result."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from galley.ops.batch import Ints, Table

Recurrence: TypeAlias = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""(state, one row of each input) -> (next state, result), all of float32."""


def causal_sum(
    state: torch.Tensor, x: torch.Tensor, *, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the next state, and the sum of each column's last values times its weights.

    Args:
        state: [size - 1, width], the previous rows.
        x: [width], the newest row.
        weight: [width, size]; the last column is for the newest row.
        bias: [width] or None.
    """
    rows = torch.cat((state, x[None]))
    total = torch.zeros_like(x) if bias is None else bias.clone()
    for row, factors in zip(rows, weight.T, strict=True):
        total = total + row * factors
    return rows[1:], total


def recurrence(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    decay: torch.Tensor,
    *,
    heads: int,
    delta: bool,
    skip: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute one row of ``ssm`` or, with ``delta``, of ``delta_rule`` (``graph/signatures.py``).

    Args:
        state: [heads * key_dim, value_dim].
        q, k: [groups * key_dim].
        v: [heads * value_dim].
        beta, decay: [heads] factors of the addition to the state, and of the previous state.
        heads: number of heads.
        delta: the value that the state already has for k is subtracted from v.
        skip: [heads] factors with which v is added to the result, or None.
    """
    s = state.view(heads, -1, state.shape[1]) * decay[:, None, None]
    groups = q.shape[0] // s.shape[1]
    q, k = (
        x.view(groups, 1, -1).expand(-1, heads // groups, -1).reshape(heads, -1, 1) for x in (q, k)
    )
    v = v.view(heads, 1, -1)
    known = (s * k).sum(1, keepdim=True) if delta else torch.zeros_like(v)
    s = s + k * ((v - known) * beta[:, None, None])
    y = (s * q).sum(1, keepdim=True)
    if skip is not None:
        y = y + v * skip[:, None, None]
    return s.view_as(state), y.reshape(-1)


def advance(
    kernel: Recurrence,
    kept: torch.Tensor,
    starts: Ints,
    slots: Sequence[Table],
    rows: Sequence[torch.Tensor],
    width: int,
) -> torch.Tensor:
    """Compute the rows of a step, one after another.

    Args:
        kernel: computes one row.
        kept: [slots, rows, width] the layer's states, which are read and written.
        starts: the start of each sequence's rows, and the end of the last.
        slots: the slots of each sequence, as in :attr:`galley.ops.batch.Batch.states`.
        rows: [rows, columns] for each input.
        width: columns of a result.

    Returns:
        [rows, width].
    """
    made = torch.zeros((len(rows[0]), width), device=kept.device)
    for begin, states in zip(starts.tolist(), slots, strict=False):
        row = begin
        state = kept[states[0]].clone() if states[0] >= 0 else torch.zeros_like(kept[0])
        for done, slot in zip(states[1::2], states[2::2], strict=True):
            for r in range(row, begin + done):
                # Copy each row, so that it begins at an aligned address.
                state, made[r] = kernel(state, *(x[r].clone() for x in rows))
            row = begin + done
            kept[slot] = state
    return made
