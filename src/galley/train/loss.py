"""What a student is trained on: to say what its teacher says, and what the text says.

Source: G. Hinton, O. Vinyals, J. Dean, "Distilling the Knowledge in a Neural Network", arXiv:1503.02531.
"""

from typing import Final

import torch
from torch import Tensor

_LEAST_REST: Final = 1e-6
"""A student's probability of all tokens that are not among the teacher's likeliest; less counts as this."""


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """[rows] in nats: ``logits`` [rows, vocab] against the tokens that follow."""
    return logits.logsumexp(-1) - logits.gather(-1, targets[:, None])[:, 0]


def divergence(logits: Tensor, tokens: Tensor, log_probs: Tensor, temperature: float) -> Tensor:
    """[rows] KL divergence of the student from the teacher in nats, both at the temperature.

    The outcomes are the teacher's likeliest tokens, and all others together: a lower bound of the
    divergence over all tokens, and 0 only if the student agrees on each of the likeliest.

    Args:
        logits: [rows, vocab] the student's.
        tokens: [rows, k] the teacher's likeliest tokens.
        log_probs: [rows, k] the teacher's, at the temperature.
        temperature: by which logits are divided.
    """
    soft = logits if temperature == 1 else logits / temperature
    own = soft.gather(-1, tokens) - soft.logsumexp(-1, keepdim=True)
    told = log_probs.exp()
    known = (told * (log_probs - own)).sum(-1)
    rest = (1 - told.sum(-1)).clamp(min=0)
    own_rest = (1 - own.exp().sum(-1)).clamp(min=_LEAST_REST)
    beside: Tensor = torch.special.xlogy(rest, rest) - rest * own_rest.log()
    return known + beside


def distillation(
    logits: Tensor,
    targets: Tensor,
    tokens: Tensor,
    log_probs: Tensor,
    *,
    temperature: float,
    kl_weight: float,
) -> Tensor:
    """[rows]: ``kl_weight`` * T^2 * divergence + (1 - ``kl_weight``) * cross-entropy.

    T^2 gives gradients of the first part one size at any temperature. Arguments as above.
    """
    loss = torch.zeros_like(logits[:, 0])
    if kl_weight:
        soft = divergence(logits, tokens, log_probs, temperature)
        loss = loss + kl_weight * temperature**2 * soft
    if kl_weight < 1:
        loss = loss + (1 - kl_weight) * cross_entropy(logits, targets)
    return loss
