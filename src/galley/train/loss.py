"""The training loss: a student learns its teacher's distribution and the text itself.

Source: G. Hinton, O. Vinyals, J. Dean, "Distilling the Knowledge in a Neural Network", arXiv:1503.02531.
"""

from typing import Final

import torch
from torch import Tensor

_LEAST_REST: Final = 1e-6
"""Lower bound on a student's probability of all tokens outside the teacher's likeliest."""


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy [rows] in nats of ``logits`` [rows, vocab] with the tokens that follow."""
    return logits.logsumexp(-1) - logits.gather(-1, targets[:, None])[:, 0]


def divergence(logits: Tensor, tokens: Tensor, log_probs: Tensor, temperature: float) -> Tensor:
    """Return the KL divergence [rows] of the student from the teacher in nats, both at the temperature.

    The outcomes are the teacher's likeliest tokens, and all others together. This is a lower bound of the
    divergence over all tokens, and 0 only if the student agrees on each of the likeliest.

    Args:
        logits: [rows, vocab] the student's logits.
        tokens: [rows, k] the teacher's likeliest tokens.
        log_probs: [rows, k] the teacher's log-probabilities, at the temperature.
        temperature: the divisor of the logits.
    """
    soft = logits if temperature == 1 else logits / temperature
    own = soft.gather(-1, tokens) - soft.logsumexp(-1, keepdim=True)
    teacher = log_probs.exp()
    known = (teacher * (log_probs - own)).sum(-1)
    rest = (1 - teacher.sum(-1)).clamp(min=0)
    own_rest = (1 - own.exp().sum(-1)).clamp(min=_LEAST_REST)
    remainder: Tensor = torch.special.xlogy(rest, rest) - rest * own_rest.log()
    return known + remainder


def distillation(
    logits: Tensor,
    targets: Tensor,
    tokens: Tensor,
    log_probs: Tensor,
    *,
    temperature: float,
    kl_weight: float,
) -> Tensor:
    """Return [rows]: ``kl_weight`` * T^2 * divergence + (1 - ``kl_weight``) * cross-entropy.

    T^2 keeps the gradients of the first part at the same scale at any temperature.

    Args:
        logits, targets: as for :func:`cross_entropy`.
        tokens, log_probs, temperature: as for :func:`divergence`.
        kl_weight: weight of the divergence.
    """
    loss = torch.zeros_like(logits[:, 0])
    if kl_weight:
        soft = divergence(logits, tokens, log_probs, temperature)
        loss = loss + kl_weight * temperature**2 * soft
    if kl_weight < 1:
        loss = loss + (1 - kl_weight) * cross_entropy(logits, targets)
    return loss
