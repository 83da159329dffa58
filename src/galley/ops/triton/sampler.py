"""Draw tokens on the device, so that only their ids are copied back."""

from typing import Final

import numpy as np
import torch
import triton

from galley.ops.draws import SAMPLING_RECORD, noise
from galley.ops.sampling import SamplingBatch
from galley.ops.triton.kernels.sample import choose_kernel, draw_kernel, greatest_kernel, sum_kernel
from galley.ops.triton.matrices import FUSION
from galley.ops.triton.tiles import Device

_BLOCK: Final = 1024


def drawn_on_device(sampling: SamplingBatch) -> bool:
    """Return whether only draws are requested, none of which needs sorted logits."""
    if sampling.adjustments or sampling.logprobs or sampling.drawn_logprobs or sampling.candidates:
        return False
    if sampling.drawn_scores or sampling.keep_logits or sampling.masks_filled is not None:
        return False
    records = np.frombuffer(b"".join(sampling.records), dtype=SAMPLING_RECORD)
    greedy = records["scale"] == 0
    return bool((greedy | ((records["top_k"] == 0) & (records["top_p"] == 1.0))).all())


class Draws:
    """Memory on the device for ``count`` draws."""

    def __init__(self, count: int, vocab: int, device: Device) -> None:
        blocks = triton.cdiv(vocab, _BLOCK)
        where = device.torch
        self.count, self.blocks = count, blocks
        pinned = where.type == "cuda"
        # Noise and reach need 8 bytes each, scale and row 4 each: one buffer of 24 bytes per draw.
        self.host = torch.zeros(24 * count, dtype=torch.uint8, pin_memory=pinned)
        self.inputs = torch.zeros_like(self.host, device=where)
        self.most = torch.empty((count, blocks), device=where)
        self.first = torch.empty((count, blocks), dtype=torch.int32, device=where)
        self.sums = torch.empty((count, blocks), dtype=torch.int64, device=where)
        self.greatest = torch.empty(count, device=where)
        self.tokens = torch.empty(count, dtype=torch.int32, device=where)
        self.answer = torch.empty(count, dtype=torch.int32, pin_memory=pinned)

    def fill(self, sampling: SamplingBatch) -> bool:
        """Copy the parameters of the draws to the device; return whether any draw is not greedy."""
        n, count = len(sampling.rows), self.count
        records = np.frombuffer(b"".join(sampling.records), dtype=SAMPLING_RECORD)
        raw = self.host.numpy()
        raw[:] = 0
        raw[: 8 * count].view(np.uint64)[:n] = [
            noise(int(record["seed"]), position) if record["scale"] else 0
            for record, position in zip(records, sampling.positions, strict=True)
        ]
        raw[8 * count : 16 * count].view(np.float64)[:n] = records["reach"]
        raw[16 * count : 20 * count].view(np.float32)[:n] = records["scale"]
        raw[20 * count :].view(np.int32)[:n] = sampling.rows
        self.inputs.copy_(self.host, non_blocking=True)
        return bool(records["scale"].any())

    def launch(self, logits: torch.Tensor, *, greedy: bool) -> None:
        """Launch the kernels that draw ``tokens`` from ``logits`` [rows, vocab]."""
        count, blocks, vocab = self.count, self.blocks, logits.shape[1]
        noises = self.inputs[: 8 * count].view(torch.uint64)
        reaches = self.inputs[8 * count : 16 * count].view(torch.float64)
        scales = self.inputs[16 * count : 20 * count].view(torch.float32)
        rows = self.inputs[20 * count :].view(torch.int32)
        stride, wide = logits.stride(0), triton.next_power_of_2(blocks)
        greatest_kernel[(count, blocks)](
            logits, rows, self.most, self.first, stride, vocab, blocks, BLOCK=_BLOCK, **FUSION
        )
        choose_kernel[(count,)](
            self.most, self.first, self.greatest, self.tokens, blocks, BLOCKS=wide, **FUSION
        )
        if greedy:
            return
        sum_kernel[(count, blocks)](
            logits, rows, self.greatest, scales, reaches, self.sums, stride, vocab, blocks, BLOCK=_BLOCK,
            **FUSION,
        )  # fmt: skip
        draw_kernel[(count,)](
            logits, rows, self.greatest, scales, reaches, noises, self.sums, self.tokens, stride, vocab,
            blocks, BLOCK=_BLOCK, BLOCKS=wide, **FUSION,
        )  # fmt: skip


class Sampler:
    """Draws the tokens of steps that are not captured, and reads the tokens of all steps."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def draw(self, logits: torch.Tensor, sampling: SamplingBatch) -> Draws:
        """Launch draws that :func:`drawn_on_device` allows."""
        draws = Draws(len(sampling.rows), logits.shape[1], self._device)
        greedy = not draws.fill(sampling)
        draws.launch(logits, greedy=greedy)
        return draws

    def tokens(self, draws: Draws, count: int) -> list[int]:
        """Wait for the drawn ids and return them."""
        draws.answer.copy_(draws.tokens, non_blocking=True)
        self._device.synchronize()
        tokens: list[int] = draws.answer[:count].tolist()
        return tokens
