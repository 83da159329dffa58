"""Mixtures of experts in torch: which experts each row of a tile goes to, and what they make of it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.functional import silu


def route(
    logits: torch.Tensor, attrs: Mapping[str, Any], bias: torch.Tensor | None
) -> torch.Tensor:
    """The op ``route`` of one tile.

    Args:
        logits: [rows, experts] float32.
        attrs: of the op; see ``graph/signatures.py``.
        bias: [experts], added to what is compared.

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
    """Their places, greatest first, the first of equals."""
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :count]


def _within_groups(keys: torch.Tensor, attrs: Mapping[str, Any]) -> torch.Tensor:
    """``keys`` of the best groups, minus infinity of all others."""
    grouped = keys.view(len(keys), attrs["groups"], -1)
    best = grouped.gather(2, _greatest(grouped, attrs["group_best"])).sum(-1)
    kept = torch.zeros_like(best, dtype=torch.bool)
    kept.scatter_(1, _greatest(best, attrs["kept_groups"]), True)
    return grouped.masked_fill(~kept[:, :, None], -torch.inf).view_as(keys)


def gated(gate: torch.Tensor, up: torch.Tensor, attrs: Mapping[str, Any]) -> torch.Tensor:
    """How an expert's two products meet; see ``experts`` in ``graph/signatures.py``."""
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
    scaled_inputs: bool,
) -> torch.Tensor:
    """The op ``experts`` of one tile.

    An expert that any row chose sees the whole tile, whose shape never changes; only the rows that chose it
    take the result.

    Args:
        x: [rows, hidden].
        routes: as :func:`route` makes them.
        run: what an expert, by its number, makes of x.
        scaled_inputs: weights scale what experts read, not what they make.

    Returns:
        [rows, hidden], added up in the order of the choices.
    """
    chosen, weights = routes.chunk(2, dim=1)
    made = x.new_zeros((*chosen.shape, x.shape[1]), dtype=torch.float32)
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
