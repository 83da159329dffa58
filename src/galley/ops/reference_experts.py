"""Mixtures of experts in torch: choose the experts of each row of a tile, and compute their sum."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.functional import silu


def route(
    logits: torch.Tensor, attrs: Mapping[str, Any], bias: torch.Tensor | None
) -> torch.Tensor:
    """Run the op ``route`` on one tile.

    Args:
        logits: [rows, experts] float32.
        attrs: attributes of the op; see ``graph/signatures.py``.
        bias: [experts], added to the scores that are compared.

    Returns:
        [rows, 2 * per_token] float32: numbers of experts, then their weights.
    """
    scores = logits.softmax(-1) if attrs["scores"] == "softmax" else logits.sigmoid()
    keys = scores if bias is None else scores + bias.float()
    if attrs["kept_groups"] < attrs["groups"]:
        keys = _within_groups(keys, attrs)
    chosen = _greatest(keys, attrs["per_token"])
    weights = scores.gather(1, chosen)
    if attrs["normalize"]:
        weights = weights / weights.sum(-1, keepdim=True)
    return torch.cat((chosen.float(), weights * attrs["factor"]), dim=1)


def _greatest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices of the greatest values, greatest first; of equal ones the first."""
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :count]


def _within_groups(keys: torch.Tensor, attrs: Mapping[str, Any]) -> torch.Tensor:
    """Return ``keys`` with minus infinity for all but the best groups."""
    grouped = keys.view(len(keys), attrs["groups"], -1)
    best = grouped.gather(2, _greatest(grouped, attrs["group_best"])).sum(-1)
    kept = torch.zeros_like(best, dtype=torch.bool)
    kept.scatter_(1, _greatest(best, attrs["kept_groups"]), True)
    return grouped.masked_fill(~kept[:, :, None], -torch.inf).view_as(keys)


def gated(gate: torch.Tensor, up: torch.Tensor, attrs: Mapping[str, Any]) -> torch.Tensor:
    """Combine an expert's products of gate and up; see ``experts`` in ``graph/signatures.py``."""
    limit = attrs["limit"]
    if not limit:
        return silu(gate) * up
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(attrs["alpha"] * gate) * (up + 1)


def expert_sum(
    x: torch.Tensor,
    routes: torch.Tensor,
    run: Callable[[int, torch.Tensor], torch.Tensor],
    *,
    width: int,
    scaled_inputs: bool,
) -> torch.Tensor:
    """Run the op ``experts`` on one tile.

    An expert that any row chose is run on the whole tile, whose shape never changes; only the rows that
    chose it use the result.

    Args:
        x: [rows, hidden].
        routes: result of :func:`route`.
        run: runs an expert, given by its number, on x.
        width: columns of its result.
        scaled_inputs: weights scale the inputs of experts, not their results.

    Returns:
        [rows, width], summed in the order of the choices.
    """
    chosen, weights = routes.chunk(2, dim=1)
    made = x.new_zeros((*chosen.shape, width), dtype=torch.float32)
    for expert in sorted(set(chosen.long().flatten().tolist())):
        mine = chosen == expert
        read = x
        if scaled_inputs:
            read = x * weights.masked_fill(~mine, 0.0).sum(-1, keepdim=True).to(x.dtype)
        made[mine] = run(expert, read).float()[mine.nonzero()[:, 0]]
    total = torch.zeros_like(made[:, 0])
    for i in range(chosen.shape[1]):
        total = total + (made[:, i] if scaled_inputs else made[:, i] * weights[:, i : i + 1])
    return total.to(x.dtype)
