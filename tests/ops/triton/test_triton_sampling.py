"""Tokens drawn on the device are those that ``galley.ops.draws`` draws from the same logits."""

import numpy as np

from tests.ops.triton.device import DEVICE, device

import torch

from galley.ops.draws import Draws, draw_all, sampling_record
from galley.ops.sampling import LogitsAdjustment, SamplingBatch
from galley.ops.triton.sampler import Sampler, drawn_on_device


def record(
    temperature: float, *, seed: int = 1, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> bytes:
    return sampling_record(
        seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )


def test_draws_on_the_device_are_the_specified_ones() -> None:
    rows = 9
    logits = np.random.default_rng(0).standard_normal((rows, 2500)).astype(np.float32) * 4
    logits[3, 40] = logits[3, 1700] = logits[3].max() + 1  # equals: the lower id
    logits[4] = -np.inf
    logits[5, 17] = np.nan
    logits[6, :2400] = -np.inf
    logits[7, 5] = np.inf
    records = [
        record(0.0) if row == 3 else record(0.3 * row, seed=row - 2, min_p=0.02 * (row % 3))
        for row in range(rows)
    ]
    sampling = SamplingBatch()
    for row in reversed(range(rows)):
        sampling.draw(row, 1000 + row, records[row])
    assert drawn_on_device(sampling)
    wanted = draw_all(logits, Draws(sampling.rows, sampling.positions, b"".join(sampling.records)))
    sampler = Sampler(device())
    got = sampler.tokens(sampler.draw(torch.from_numpy(logits).to(DEVICE), sampling), rows)
    assert got == wanted
    assert len(set(wanted)) > 4


def test_a_seed_draws_the_distribution() -> None:
    """Of two tokens, one three times as likely."""
    logits = torch.tensor([[np.log(3.0), 0.0]], device=DEVICE)
    sampler, drawn = Sampler(device()), 0
    for position in range(40):
        sampling = SamplingBatch()
        sampling.draw(0, position, record(1.0, seed=7))
        drawn += sampler.tokens(sampler.draw(logits, sampling), 1)[0]
    assert 3 <= drawn <= 20


def test_what_needs_logits_in_order_or_changed_is_left_to_the_host() -> None:
    for given in (record(1.0, top_k=5), record(1.0, top_p=0.9)):
        sampling = SamplingBatch()
        sampling.draw(0, 0, given)
        assert not drawn_on_device(sampling)
    assert not drawn_on_device(SamplingBatch(keep_logits=True))
    assert not drawn_on_device(SamplingBatch(adjustments={0: LogitsAdjustment()}))
