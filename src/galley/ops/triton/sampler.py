"""Draw tokens on the device, so that only their ids are copied back."""

from typing import Final

import numpy as np
import numpy.typing as npt
import torch
import triton

from galley.ops.draws import SAMPLING_RECORD
from galley.ops.sampling import SamplingBatch
from galley.ops.triton.kernels.sample import (
    choose_kernel,
    draw_kernel,
    greatest_kernel,
    sorted_draw_kernel,
    sorted_sum_kernel,
    sum_kernel,
)
from galley.ops.triton.matrices import FUSION
from galley.ops.triton.tiles import Device

_BLOCK: Final = 1024

_SORTED_TOGETHER: Final = 32
"""Rows of logits sorted at a time, which bounds the memory for it."""

_PARAMETERS: Final = {
    "seed": torch.uint64,
    "position": torch.int64,
    "reach": torch.float64,
    "top_p": torch.float64,
    "scale": torch.float32,
    "row": torch.int32,
    "top_k": torch.int32,
}
"""Parameter of a draw -> its type; the wider ones come first, so that all are aligned in one buffer."""


def drawn_on_device(sampling: SamplingBatch) -> bool:
    """Return whether only draws are requested, from logits as they are."""
    if sampling.adjustments or sampling.logprobs or sampling.drawn_logprobs or sampling.candidates:
        return False
    return not (sampling.drawn_scores or sampling.keep_logits or sampling.masks_filled is not None)


def sampling_records(sampling: SamplingBatch) -> npt.NDArray[np.void]:
    """Return the records of all draws."""
    return np.frombuffer(b"".join(sampling.records), dtype=SAMPLING_RECORD)


def needs_sorting(sampling: SamplingBatch) -> bool:
    """Return whether any draw keeps only some tokens by their rank or mass."""
    records = sampling_records(sampling)
    cut = (records["top_k"] > 0) | (records["top_p"] < 1.0)
    return bool((cut & (records["scale"] > 0)).any())


class Draws:
    """Memory on the device for ``count`` draws."""

    def __init__(self, count: int, vocab: int, device: Device) -> None:
        blocks = triton.cdiv(vocab, _BLOCK)
        where = device.torch
        self.count, self.blocks, self._vocab = count, blocks, vocab
        pinned = where.type == "cuda"
        sizes = [count * dtype.itemsize for dtype in _PARAMETERS.values()]
        self._host = torch.zeros(sum(sizes), dtype=torch.uint8, pin_memory=pinned)
        self._device = torch.zeros_like(self._host, device=where)
        self._written, self._read = (
            {
                name: part.view(dtype)
                for (name, dtype), part in zip(
                    _PARAMETERS.items(), torch.split(whole, sizes), strict=True
                )
            }
            for whole in (self._host, self._device)
        )
        self.most = torch.empty((count, blocks), device=where)
        self.first = torch.empty((count, blocks), dtype=torch.int32, device=where)
        self.sums = torch.empty((count, blocks), dtype=torch.int64, device=where)
        self.greatest = torch.empty(count, device=where)
        self.tokens = torch.empty(count, dtype=torch.int32, device=where)
        self._where = device
        self._copied: torch.cuda.Event | None = None

    def fill(self, sampling: SamplingBatch) -> bool:
        """Copy the parameters of the draws to the device; return whether any draw is not greedy."""
        records = sampling_records(sampling)
        top_k = records["top_k"]
        given: dict[str, npt.ArrayLike] = {
            name: records[name] for name in ("seed", "reach", "top_p", "scale")
        }
        given |= {
            "position": sampling.positions,
            "row": sampling.rows,
            "top_k": np.where(top_k < self._vocab, top_k, 0),
        }
        if self._copied is not None:
            self._copied.synchronize()
        self._host.zero_()
        for name, values in given.items():
            self._written[name].numpy()[: len(sampling.rows)] = values
        self._device.copy_(self._host, non_blocking=True)
        self._copied = self._where.mark()
        return bool(records["scale"].any())

    def start_copy(self) -> torch.Tensor:
        """Launch a copy of the drawn ids to the host, and return its target, which is new."""
        target = torch.empty(
            self.count, dtype=torch.int32, pin_memory=self._where.torch.type == "cuda"
        )
        return target.copy_(self.tokens, non_blocking=True)

    def launch(self, logits: torch.Tensor, *, greedy: bool, sort: bool = False) -> None:
        """Launch the kernels that draw ``tokens`` from ``logits`` [rows, vocab].

        ``sort`` is needed for draws by top-k or top-p.
        """
        count, blocks, vocab = self.count, self.blocks, logits.shape[1]
        rows, scales, reaches = (self._read[name] for name in ("row", "scale", "reach"))
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
            logits, rows, self.greatest, scales, reaches, self._read["seed"], self._read["position"],
            self.sums, self.tokens, stride, vocab, blocks, BLOCK=_BLOCK, BLOCKS=wide, **FUSION,
        )  # fmt: skip
        for begin in range(0, count if sort else 0, _SORTED_TOGETHER):
            self._draw_sorted(logits, slice(begin, begin + _SORTED_TOGETHER))

    def _draw_sorted(self, logits: torch.Tensor, some: slice) -> None:
        """Replace the tokens of some draws by those of top-k and top-p."""
        blocks, vocab = self.blocks, logits.shape[1]
        own = {name: values[some] for name, values in self._read.items()}
        rows, scales, reaches, top_k = (own[name] for name in ("row", "scale", "reach", "top_k"))
        greatest, sums = self.greatest[some], self.sums[some]
        values, ids = logits.index_select(0, rows).sort(dim=1, descending=True, stable=True)
        sorted_sum_kernel[(len(rows), blocks)](
            values, greatest, scales, reaches, top_k, sums, vocab, blocks, BLOCK=_BLOCK, **FUSION
        )
        sorted_draw_kernel[(len(rows),)](
            values, ids, greatest, scales, reaches, own["seed"], own["position"], top_k, own["top_p"], sums,
            self.tokens[some], vocab, blocks, BLOCK=_BLOCK, BLOCKS=triton.next_power_of_2(blocks), **FUSION,
        )  # fmt: skip


def draw(logits: torch.Tensor, sampling: SamplingBatch, device: Device) -> Draws:
    """Launch draws that :func:`drawn_on_device` allows, for a step that is not captured."""
    draws = Draws(len(sampling.rows), logits.shape[1], device)
    greedy = not draws.fill(sampling)
    draws.launch(logits, greedy=greedy, sort=needs_sorting(sampling))
    return draws
