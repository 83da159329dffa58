"""Programs whose keys and values differ in width, on both executors, against plain torch in float64."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch.nn.functional import scaled_dot_product_attention

from galley.formats.values import to_float32
from galley.formats.weights import LoadedWeights
from galley.graph.program import Program
from galley.graph.trace import Buffer, Tracer, trace, trace_effect
from galley.ops.batch import CrossContext, EncoderBatch
from galley.ops.cpu import CpuExecutor
from galley.ops.executor import Executor, ExecutorOptions, align, encode, forward
from galley.ops.isa import ISA_VARIABLE
from galley.ops.reference import ReferenceExecutor
from galley.types import BLOCK_TOKENS
from tests.native.harness import ISAS, Floats, as_weight, ragged

VOCAB, WIDTH, MELS = 40, 24, 6
LENGTHS, FRAMES = (1, 19, 300), (5, 33, 290)
POSITIONS = 512
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Widths:
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int = 0

    @property
    def scale(self) -> float:
        return float(self.key_dim**-0.5)

    @property
    def inv_freq(self) -> tuple[float, ...]:
        return tuple(100.0 ** (-2 * i / self.key_dim) for i in range(self.key_dim // 2))

    def project(self, g: Tracer, x: Buffer, name: str) -> tuple[Buffer, Buffer, Buffer]:
        """Return queries, keys and values."""
        return (
            g.linear(x, f"{name}.q", self.heads * self.key_dim),
            g.linear(x, f"{name}.k", self.kv_heads * self.key_dim),
            g.linear(x, f"{name}.v", self.kv_heads * self.value_dim),
        )

    def rope(self, g: Tracer, x: Buffer) -> Buffer:
        return g.rope(x, head_dim=self.key_dim, inv_freq=self.inv_freq, scale=1.0)

    def program(self) -> Program:
        """Return a program of self-attention and cross-attention over an encoder of one layer."""

        def encode(g: Tracer) -> None:
            x = g.linear(g.features(MELS), "in", WIDTH)
            mixed = g.encoder_attention(
                *self.project(g, x, "encoder"), key_dim=self.key_dim, scale=self.scale
            )
            x = g.add(x, g.linear(mixed, "encoder.o", WIDTH))
            _, k, v = self.project(g, x, "cross")
            g.cross_kv(k, v, key_dim=self.key_dim)

        def self_attention(g: Tracer) -> Buffer:
            x = g.embed("embed", vocab=VOCAB, width=WIDTH)
            q, k, v = self.project(g, x, "self")
            q, k = self.rope(g, q), self.rope(g, k)
            mixed = g.attention(q, k, v, key_dim=self.key_dim, scale=self.scale, window=self.window)
            return g.add(x, g.linear(mixed, "self.o", WIDTH))

        def decode(g: Tracer) -> Buffer:
            x = self_attention(g)
            q = g.linear(x, "cross.q", self.heads * self.key_dim)
            mixed = g.cross_attention(q, scale=self.scale)
            x = g.add(x, g.linear(mixed, "cross.o", WIDTH))
            return g.linear(g.select_rows(x), "head", VOCAB)

        def align(g: Tracer) -> None:
            q = g.linear(self_attention(g), "cross.q", self.heads * self.key_dim)
            g.cross_weights(q, (self.heads - 1,), first=0, scale=self.scale)

        encoder = trace_effect(encode, max_positions=POSITIONS)
        program = trace(decode, max_positions=POSITIONS, encoder=encoder)
        return dataclasses.replace(program, aligner=trace_effect(align, max_positions=POSITIONS))

    def split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """Return [heads, rows, columns of a head]; query heads that share a KV head get a copy each."""
        split = x.view(len(x), heads, -1).transpose(0, 1)
        return split.repeat_interleave(self.heads // heads, dim=0)

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        """Apply rotary embedding to [heads, rows, key_dim] at positions 0, 1, ..."""
        angles = torch.arange(x.shape[1])[:, None] * torch.tensor(self.inv_freq).double()
        low, high = x.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor | None = None
    ) -> torch.Tensor:
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=self.scale)
        return mixed.transpose(0, 1).flatten(1)

    def truth(self, w: Tensors, ids: list[int], frames: Floats) -> tuple[Floats, Floats]:
        """Return logits of all tokens, and the last head's weights in cross-attention."""
        x = torch.from_numpy(frames).double() @ w["in"].T
        q, k, v = (x @ w[f"encoder.{role}"].T for role in "qkv")
        mixed = self.attend(
            self.split(q, self.heads), self.split(k, self.kv_heads), self.split(v, self.kv_heads)
        )
        x = x + mixed @ w["encoder.o"].T
        audio = [self.split(x @ w[f"cross.{role}"].T, self.kv_heads) for role in "kv"]
        x = w["embed"][ids]
        q, k, v = (x @ w[f"self.{role}"].T for role in "qkv")
        at = torch.arange(len(ids))
        seen = at <= at[:, None]
        if self.window:
            seen &= at > at[:, None] - self.window
        q, k = self.turn(self.split(q, self.heads)), self.turn(self.split(k, self.kv_heads))
        x = x + self.attend(q, k, self.split(v, self.kv_heads), seen) @ w["self.o"].T
        q = self.split(x @ w["cross.q"].T, self.heads)
        weights = torch.softmax(q[-1] @ audio[0][-1].T * self.scale, dim=-1)
        x = x + self.attend(q, *audio) @ w["cross.o"].T
        return (x @ w["head"].T).numpy(), weights.numpy()


def run(executor: Executor, ids: list[list[int]], windows: list[Floats]) -> tuple[Floats, Floats]:
    """Return logits and weights of all tokens; the last sequence's end has the same bits in its own run."""
    executor.allocate_kv(100)
    starts = np.cumsum([0, *map(len, windows)])
    counts = [-(-len(window) // BLOCK_TOKENS) for window in windows]
    tables = tuple(np.split(np.arange(99, 99 - sum(counts), -1), np.cumsum(counts)[:-1]))
    encode(executor, EncoderBatch(np.concatenate(windows), starts, tables))
    rows = np.array([len(window) for window in windows])
    whole = replace(
        ragged([(i, len(i)) for i in ids], first_block=0), cross=CrossContext(tables, rows)
    )
    attention = align(executor, whole).copy()
    logits = forward(executor, whole).copy()
    tail = replace(
        ragged([(ids[-1], 7)], first_block=int(whole.tables[-1][0])),
        cross=CrossContext(tables[-1:], rows[-1:]),
    )
    assert np.array_equal(forward(executor, tail), logits[-7:])
    return logits, attention


@pytest.mark.parametrize(
    "widths",
    [
        Widths(4, 2, 12, 20),
        Widths(4, 2, 20, 12, window=30),
        Widths(3, 3, 24, 40, window=100),
        Widths(2, 2, 192, 128),
        # The result is as wide as the keys used in attention, or as the values.
        Widths(4, 2, 24, 12),
        Widths(1, 1, 8, 5),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["reference", *ISAS])
def test_programs_agree_with_torch(
    widths: Widths, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(widths.key_dim)
    program = widths.program()
    tensors = {
        name: as_weight(rng.normal(0, 1.5 * shape[-1] ** -0.5, shape).astype(np.float32))
        for name, shape in program.all_shapes.items()
    }
    weights = LoadedWeights(tensors)
    ids = [rng.integers(0, VOCAB, n).tolist() for n in LENGTHS]
    windows = [rng.standard_normal((n, MELS), dtype=np.float32) for n in FRAMES]
    options = ExecutorOptions(
        dtype="float32", weight_dtype="float32", kv_dtype="float32", device="cpu", threads=2
    )
    if kind == "reference":
        logits, attention = run(ReferenceExecutor(program, weights, options), ids, windows)
    else:
        monkeypatch.setenv(ISA_VARIABLE, kind)
        logits, attention = run(CpuExecutor(program, weights, options), ids, windows)
    exact = {name: torch.from_numpy(to_float32(w)).double() for name, w in tensors.items()}
    ends = np.cumsum(LENGTHS)[:-1]
    for own, window, rows, weighed in zip(
        ids, windows, np.split(logits, ends), np.split(attention, ends), strict=True
    ):
        expected, weighs = widths.truth(exact, own, window)
        assert np.abs(rows - expected).max() <= 1e-5 * np.abs(expected).max()
        assert np.abs(weighed[:, 0, : len(window)] - weighs).max() <= 1e-5


def test_bytes_of_a_token_count_both_widths() -> None:
    assert Widths(4, 2, 12, 20).program().kv_bytes_per_token(2) == 2 * (12 + 20) * 2
