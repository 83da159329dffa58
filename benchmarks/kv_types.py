"""What types of the KV cache lose beside float32, on a model as it is and with wide columns of keys.

    python -m benchmarks.kv_types [MODEL] [--tokens N] [--wide 32] [--columns 2]

Weights and activations are float32, on text that the model generates. For keys with wide columns, some
pairs of columns of each head are multiplied by ``wide`` and those of the queries divided, in a copy of the
checkpoint: the same model, but for what rounding makes of it. KIVI (arXiv:2402.02750) finds such columns in
the models it looks at.

"int4, plain" is int4 without factors of columns. "int4, channels" is KIVI's form: keys with a range for
each column of 16 tokens, here without the newest tokens that it keeps unrounded.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from galley import LLM
from galley.calibration.forward import TeacherForced
from galley.calibration.measures import Divergence, Loss, following
from galley.cli.terminal import table
from galley.formats.source import resolve_model
from galley.formats.weights import Floats, Weights
from galley.graph.program import Program
from galley.ops.reference import ReferenceExecutor
from galley.ops.reference_kv import KVRounding, round_int4
from galley.ops.sampling import Logits
from galley.quality.texts import Window, own_texts
from galley.settings.engine import EngineSettings, KVType
from galley.types import BLOCK_TOKENS

PAIRS_APART: Final = 5
"""Pairs of columns between those that are made wide."""


@dataclass(frozen=True)
class ChannelRounding(KVRounding):
    """Rounds keys with a range for each column of 16 tokens; steps start at a multiple of 16."""

    def keys(self, rows: torch.Tensor, layer: int) -> torch.Tensor:
        """Round keys [tokens, kv_heads, key_dim]."""
        groups = torch.split(rows.float(), BLOCK_TOKENS)
        return torch.cat(
            [self.rounded(g.movedim(0, -1).contiguous()).movedim(-1, 0) for g in groups]
        )


def logits_of(
    folder: Path, windows: Sequence[Window], kv_dtype: KVType = "float32", channels: bool = False
) -> Iterator[Logits]:
    """Yield the logits of each window in turn, with float32 weights and activations."""
    settings = EngineSettings(
        model=str(folder), dtype="float32", kv_dtype=kv_dtype, weight_cache=False
    )
    if channels:
        settings = replace(settings, executor="reference")
    model = TeacherForced(settings, folder, longest=max(map(len, windows)))
    if channels:
        executor = model._executor
        assert isinstance(executor, ReferenceExecutor)
        executor._kv_rounding = ChannelRounding(round_int4)
    for window in windows:
        yield np.concatenate([rows.copy() for _, rows in model.logits(window)])


def without_factors(program: Program, weights: Weights) -> list[Floats]:
    """Return factors of one, to replace :func:`galley.ops.key_factors.key_factors`."""
    return [np.ones((kv.kv_heads, kv.key_dim), np.float32) for kv in program.kv]


def with_wide_columns(folder: Path, target: Path, wide: float, columns: int) -> None:
    """Copy a Llama checkpoint so that its keys have ``columns`` pairs of wide columns in each head."""
    for file in folder.glob("*.json"):
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    factors = torch.ones(2, dim // 2)
    factors[:, : columns * PAIRS_APART : PAIRS_APART] = wide

    def scaled(name: str, weight: torch.Tensor) -> torch.Tensor:
        heads = weight.view(-1, dim, *weight.shape[1:])
        by = factors.view(dim, *[1] * (weight.dim() - 1)).to(weight.dtype)
        made = heads * by if ".k_proj." in name else heads / by if ".q_proj." in name else heads
        return made.view(weight.shape)

    for file in folder.glob("*.safetensors"):
        weights = load_file(file)
        chosen = {n: scaled(n, w) for n, w in weights.items() if ".k_proj." in n or ".q_proj." in n}
        save_file({**weights, **chosen}, target / file.name)


def losses(folder: Path, windows: Sequence[Window]) -> list[list[str]]:
    """Return a row of the table for each type."""
    base = list(logits_of(folder, windows))
    found = {
        name: _loss(base, logits_of(folder, windows, name), windows)
        for name in ("bfloat16", "int8", "int4")
    }
    with patch("galley.ops.cpu.key_factors", without_factors):
        found["int4, plain"] = _loss(base, logits_of(folder, windows, "int4"), windows)
    found["int4, channels"] = _loss(base, logits_of(folder, windows, channels=True), windows)
    return [
        [
            name,
            f"{loss.perplexity:.4f}",
            f"{loss.perplexity / loss.base_perplexity - 1:+.3%}",
            f"{loss.kl:.2g}",
            f"{loss.kl_p99:.2g}",
            f"{loss.top1:.2%}",
        ]
        for name, loss in found.items()
    ]


def _loss(base: Sequence[Logits], model: Iterator[Logits], windows: Sequence[Window]) -> Loss:
    found = Divergence()
    for window, truth, got in zip(windows, base, model, strict=True):
        found.add(truth, got, following([window]))
    return found.loss()


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--wide", type=float, default=32.0)
    parser.add_argument("--columns", type=int, default=2)
    wanted = parser.parse_args()
    with LLM(wanted.model) as llm:
        windows = own_texts(llm, context=256, tokens=wanted.tokens).windows
    head = ("KV cache", "perplexity", "more", "mean KL, nats", "99 %", "same likeliest token")
    folder = resolve_model(wanted.model)
    print(table(head, losses(folder, windows)))
    with tempfile.TemporaryDirectory() as made:
        with_wide_columns(folder, Path(made), wanted.wide, wanted.columns)
        print(
            f"\n{wanted.columns} pairs of columns of each head's keys {wanted.wide:g} times as wide:"
        )
        print(table(head, losses(Path(made), windows)))


if __name__ == "__main__":
    main()
