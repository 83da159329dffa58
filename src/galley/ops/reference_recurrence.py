"""What recurrent layers do with one token, in torch: from a state and a row to the next, and a result."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from galley.ops.executor import Ints, Table

Recurrence: TypeAlias = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""(state, one row of each input) -> (next state, result), all of float32."""


def causal_sum(
    state: torch.Tensor, x: torch.Tensor, *, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of each column's last values times its weights.

    Args:
        state: [size - 1, width], the last rows.
        x: [width].
        weight: [width, size], the newest row's last.
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
    """``ssm`` and, with ``delta``, ``delta_rule`` (``graph/signatures.py``).

    Args:
        state: [heads * key_dim, value_dim].
        q, k: [groups * key_dim].
        v: [heads * value_dim].
        beta, decay: [heads] of what is added to the state, and of the state before.
        heads: how many there are.
        delta: what the state has for k already is taken from v.
        skip: [heads] of v in the result, or None.
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
    """The rows of a step, one after another.

    Args:
        kernel: of one row.
        kept: [slots, rows, width] of the layer's states, which are read and written.
        starts: where each sequence's rows begin, and their end.
        slots: of each sequence, as :attr:`galley.ops.executor.Batch.states`.
        rows: of each input, [rows, columns].
        width: of a result.

    Returns:
        [rows, width].
    """
    made = torch.zeros((len(rows[0]), width), device=kept.device)
    for begin, states in zip(starts.tolist(), slots, strict=False):
        row = begin
        state = kept[states[0]].clone() if states[0] >= 0 else torch.zeros_like(kept[0])
        for done, slot in zip(states[1::2], states[2::2], strict=True):
            for r in range(row, begin + done):
                # A copy of each row: they begin on aligned addresses, whichever they are.
                state, made[r] = kernel(state, *(x[r].clone() for x in rows))
            row = begin + done
            kept[slot] = state
    return made
