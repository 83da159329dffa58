"""What types of the KV cache lose beside float32, on a model as it is and with wide columns of keys.

    python -m benchmarks.kv_types [MODEL] [--tokens N] [--wide 32] [--columns 2]

Weights and activations stay as they are: all is computed by the reference executor in float32, which
rounds keys and values as the kernels do, on text that the model generates. For keys with wide columns, some
pairs of columns of each head are multiplied by ``wide`` and those of the queries divided, in a copy of the
checkpoint: the same model, but for what rounding makes of it. KIVI (arXiv:2402.02750) finds such columns in
the models it looks at.

"int4, plain" is int4 without factors of columns. "int4, channels" is KIVI's form: keys with a range for
each column of 16 tokens, here without the newest tokens that it keeps unrounded.
"""

import argparse
import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from galley import LLM
from galley.calibration.forward import TeacherForced
from galley.calibration.measures import Divergence, Loss, following
from galley.cli.terminal import table
from galley.engine_settings import EngineSettings, KVType
from galley.formats.source import resolve_model
from galley.ops.reference import ReferenceExecutor
from galley.ops.reference_kv import KVRounding, round_int4
from galley.quality.texts import Window, own_texts
from galley.types import BLOCK_TOKENS

PAIRS_APART: Final = 5
"""Pairs of columns between those that are made wide."""


@dataclass(frozen=True)
class ChannelRounding(KVRounding):
    """Keys with a range for each column of 16 tokens; steps begin at a multiple of these."""

    def keys(self, rows: torch.Tensor, layer: int) -> torch.Tensor:
        """Of [tokens, kv_heads, key_dim]."""
        groups = rows.float().split(BLOCK_TOKENS)
        return torch.cat(
            [self.rounded(g.movedim(0, -1).contiguous()).movedim(-1, 0) for g in groups]
        )


def logits_of(
    folder: Path, kv_dtype: KVType, rounding: KVRounding | None, windows: Sequence[Window]
) -> Iterable[np.ndarray]:
    """Of each window in turn; ``rounding`` replaces what ``kv_dtype`` says."""
    settings = EngineSettings(
        model=str(folder), dtype="float32", kv_dtype=kv_dtype, executor="reference"
    )
    model = TeacherForced(settings, folder, longest=max(map(len, windows)))
    executor = model._executor
    assert isinstance(executor, ReferenceExecutor)
    if rounding is not None:
        executor._kv_rounding = rounding
    for window in windows:
        yield np.concatenate([rows.copy() for _, rows in model.logits(window)])


def with_wide_columns(folder: Path, target: Path, wide: float, columns: int) -> None:
    """A copy of a Llama checkpoint whose keys have ``columns`` pairs of wide columns in each head."""
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
    """A row of the table for each type."""
    base = list(logits_of(folder, "float32", None, windows))
    cases: list[tuple[str, KVType, KVRounding | None]] = [
        ("bfloat16", "float32", KVRounding(lambda x: x.bfloat16().float())),
        ("int8", "int8", None),
        ("int4", "int4", None),
        ("int4, plain", "float32", KVRounding(round_int4)),
        ("int4, channels", "float32", ChannelRounding(round_int4)),
    ]
    rows = []
    for name, kv_dtype, rounding in cases:
        loss = _loss(base, logits_of(folder, kv_dtype, rounding, windows), windows)
        rows.append(
            [
                name,
                f"{loss.perplexity:.4f}",
                f"{loss.kl:.2g}",
                f"{loss.kl_p99:.2g}",
                f"{loss.top1:.2%}",
            ]
        )
    rows[0][1] += f" (float32 {loss.base_perplexity:.4f})"
    return rows


def _loss(
    base: Sequence[np.ndarray], model: Iterable[np.ndarray], windows: Sequence[Window]
) -> Loss:
    found = Divergence()
    for window, truth, got in zip(windows, base, model, strict=True):
        found.add(truth, got, following([window]))
    return found.loss()


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--wide", type=float, default=32.0)
    parser.add_argument("--columns", type=int, default=2)
    wanted = parser.parse_args()
    with LLM(wanted.model) as llm:
        windows = own_texts(llm, context=512, tokens=wanted.tokens).windows
    head = ("KV cache", "perplexity", "mean KL, nats", "99 %", "same likeliest token")
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
