"""Tokens drawn on the device equal those that ``galley.ops.draws`` draws from the same logits."""

import numpy as np

from tests.ops.triton.device import DEVICE, device

import torch

from galley.ops.draws import Draws, draw_all, sampling_record
from galley.ops.sampling import LogitsAdjustment, SamplingBatch
from galley.ops.triton.sampler import draw, drawn_on_device


def record(
    temperature: float, *, seed: int = 1, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> bytes:
    return sampling_record(
        seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )


def test_draws_on_the_device_are_the_specified_ones() -> None:
    rows = 9
    logits = np.random.default_rng(0).standard_normal((rows, 2500)).astype(np.float32) * 4
    logits[3, 40] = logits[3, 1700] = logits[3].max() + 1  # on ties the lower id
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
    got = draw(torch.from_numpy(logits).to(DEVICE), sampling, device()).tokens.tolist()
    assert got == wanted
    assert len(set(wanted)) > 4


def test_a_seed_draws_the_distribution() -> None:
    """Two tokens, one three times as likely."""
    logits = torch.tensor([[np.log(3.0), 0.0]], device=DEVICE)
    drawn = 0
    for position in range(40):
        sampling = SamplingBatch()
        sampling.draw(0, position, record(1.0, seed=7))
        drawn += draw(logits, sampling, device()).tokens.tolist()[0]
    assert 3 <= drawn <= 20


CUTS: dict[str, dict[str, float]] = {
    "top_k": {"top_k": 7},
    "top_k of equal logits": {"top_k": 2, "temperature": 3.0},
    "top_k as large as the vocabulary": {"top_k": 2500},
    "fewer than top_k left by min_p": {"top_k": 2400, "min_p": 0.3},
    "as many as top_k left by min_p": {"top_k": 3, "min_p": 0.001},
    "top_p": {"top_p": 0.7},
    "no top_p": {"top_p": 0.0},
    "top_p of many": {"top_p": 0.999, "temperature": 4.0},
    "all three": {"top_k": 40, "top_p": 0.8, "min_p": 0.05},
    "none": {},
    "greedy": {"temperature": 0.0, "top_k": 5},
}


def test_draws_by_top_k_and_top_p_are_the_specified_ones() -> None:
    """All kinds of sampling in one step, each at several positions."""
    logits = np.random.default_rng(1).standard_normal((len(CUTS), 2500)).astype(np.float32) * 3
    logits[1] = np.round(logits[1])
    logits[5, :2400] = -np.inf
    sampling = SamplingBatch()
    for row, cut in enumerate(CUTS.values()):
        made = record(**{"temperature": 1.0, "seed": row, **cut})  # type: ignore[arg-type]
        for position in range(4):
            sampling.draw(row, position, made)
    assert drawn_on_device(sampling)
    wanted = draw_all(logits, Draws(sampling.rows, sampling.positions, b"".join(sampling.records)))
    got = draw(torch.from_numpy(logits).to(DEVICE), sampling, device()).tokens.tolist()
    assert got == wanted
    assert len(set(wanted)) > 20


def test_what_needs_changed_logits_is_left_to_the_host() -> None:
    assert not drawn_on_device(SamplingBatch(keep_logits=True))
    assert not drawn_on_device(SamplingBatch(adjustments={0: LogitsAdjustment()}))
