"""Attention over paged keys and values against a plain softmax, whatever else is in a launch."""

from typing import Any

import numpy as np
import pytest

from tests.ops.triton.device import DEVICE, ERRORS, TYPES, device, error

import torch

from galley.graph.program import KVLayout, Op, first_seen
from galley.ops.batch import Batch
from galley.ops.triton.step_batch import Staging, shape_of, tiles_of
from galley.ops.triton.attention import Attention, Cache, heads_together, key_stride
from galley.ops.triton.tiles import query_tile

CASES: dict[str, dict[str, Any]] = {
    "all keys": {},
    "a window": {"window": 24},
    "chunks": {"window": 48, "chunked": True},
    "soft caps and sinks": {"cap": 2.0, "sinks": True, "heads": 5, "kv_heads": 1, "value_dim": 13},
    "latent": {"heads": 20, "kv_heads": 1, "key_dim": 34, "value_dim": 25, "latent": True},
    "latent, no part of a block": {"kv_heads": 1, "key_dim": 38, "value_dim": 32, "latent": True},
    "one head each": {"heads": 3, "kv_heads": 3, "key_dim": 34, "value_dim": 34},
}
LENGTHS = ((1, 270), (19, 40), (1, 3), (7, 0), (1, 129))
"""Rows of each sequence in this step, and its tokens before."""


class Case:
    """Sequences of random queries, keys and values, in blocks in random order."""

    def __init__(
        self, dtype: torch.dtype, *, heads: int = 4, kv_heads: int = 2, key_dim: int = 20,
        value_dim: int = 20, window: int = 0, chunked: bool = False, cap: float = 0.0, sinks: bool = False,
        latent: bool = False,
    ) -> None:  # fmt: skip
        random = torch.Generator().manual_seed(heads)
        blocks = 128
        self.heads, self.kv = heads, KVLayout(kv_heads, key_dim, value_dim, window, chunked, latent)
        self.keys = torch.randn(blocks, kv_heads, 16, key_dim, generator=random).to(dtype)
        self.values = torch.randn(blocks, kv_heads, 16, value_dim, generator=random).to(dtype)
        if latent:
            self.values = self.keys[..., :value_dim]
        self.sinks = torch.randn(heads, generator=random) if sinks else None
        order = torch.randperm(blocks, generator=random).numpy()
        self.rows, self.tables = [], []
        for rows, before in LENGTHS:
            self.rows.append(torch.randn(rows, heads * key_dim, generator=random).to(dtype))
            count = -(-(rows + before) // 16)
            self.tables.append(order[:count])
            order = order[count:]
        attrs = {
            "layer": 0,
            "heads": heads,
            "kv_heads": kv_heads,
            "key_dim": key_dim,
            "value_dim": value_dim,
            "scale": key_dim**-0.5,
            "window": window,
            "chunked": chunked,
            "cap": cap,
        }
        self.op = Op("attention", (0, 1, 2), (3,), (heads * value_dim,), {}, attrs)

    def run(self, chosen: list[int], last: int = 0) -> list[torch.Tensor]:
        """Return the attention of some sequences, limited to the ``last`` rows of each if given."""
        rows = [self.rows[s][-last:] for s in chosen]
        ends = [sum(LENGTHS[s]) for s in chosen]
        counts = [len(part) for part in rows]
        starts = np.cumsum([0, *counts])
        batch = Batch(
            tokens=np.zeros(starts[-1], np.int64),
            positions=np.concatenate(
                [np.arange(e - c, e) for e, c in zip(ends, counts, strict=True)]
            ),
            starts=starts,
            tables=tuple(self.tables[s] for s in chosen),
            wanted=np.zeros(1, np.int64),
        )
        rows_together = query_tile(
            device(), heads_together(self.heads, self.kv), many=True, latent=self.kv.shared
        ).rows
        single, tiles = tiles_of(batch, rows_together)
        staging = Staging(shape_of(batch, single, tiles), 1, device())
        q = torch.cat(rows).to(DEVICE)
        out = torch.full((len(q), self.op.width), torch.nan, dtype=q.dtype, device=DEVICE)
        padding = key_stride(self.kv) - self.kv.key_dim
        keys = torch.nn.functional.pad(self.keys, (0, padding)).to(DEVICE)
        values = self.values.contiguous().to(DEVICE)
        sinks = None if self.sinks is None else self.sinks.to(DEVICE)
        attend = Attention(self.op, self.kv, device(), sinks, bits=0)
        attend(
            staging.fill(batch, single, tiles), Cache(keys, values, keys, values, keys), 0, q, out
        )
        return list(torch.split(out.cpu(), counts))

    def truth(self, sequence: int) -> torch.Tensor:
        rows, before = LENGTHS[sequence]
        a, kv = self.op.attrs, self.kv
        q = self.rows[sequence].double().view(rows, self.heads, -1)
        table = torch.from_numpy(self.tables[sequence])
        keys, values = (
            part[table].transpose(1, 2).flatten(0, 1).double() for part in (self.keys, self.values)
        )
        out = []
        for row in range(rows):
            at = before + row
            low = first_seen(at, kv.window, chunked=kv.chunked)
            for head in range(self.heads):
                shared = head // (self.heads // kv.kv_heads)
                scores = keys[low : at + 1, shared] @ q[row, head] * a["scale"]
                if a["cap"]:
                    scores = torch.tanh(scores / a["cap"]) * a["cap"]
                if self.sinks is not None:
                    scores = torch.cat([scores, self.sinks[head : head + 1].double()])
                weights = scores.softmax(0)[: at + 1 - low]
                out.append(weights @ values[low : at + 1, shared])
        return torch.stack(out).view(rows, -1)


@pytest.mark.parametrize("name", CASES)
def test_attention_is_a_softmax_over_what_a_row_sees(name: str) -> None:
    for dtype in TYPES[:1] if name != "all keys" else TYPES:
        case = Case(dtype, **CASES[name])
        made = case.run([0, 1, 2, 3, 4])
        for sequence, got in enumerate(made):
            assert error(got, case.truth(sequence)) <= ERRORS[dtype]


@pytest.mark.parametrize("name", ["all keys", "a window", "latent"])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(name: str) -> None:
    for dtype in (TYPES[0], TYPES[-1]):
        case = Case(dtype, **CASES[name])
        together = case.run([0, 1, 2, 3, 4])
        for sequence in (0, 1, 3):
            # Compute the last row of a prompt as if decoding: each of its stretches is a separate program.
            [alone] = case.run([sequence], last=1)
            assert torch.equal(alone[0], together[sequence][-1])
        assert torch.equal(case.run([1, 0])[0], together[1])
