"""Texts a second of models of embeddings, beside ONNX Runtime on the same weights.

    python -m benchmarks.embeddings [--shape minilm] [--kinds float32 bf16 int8] [--texts 512] [--rounds 5]
    python -m benchmarks.embeddings --onnx model.onnx ...

Weights are generated in the shape of all-MiniLM-L6 or bge-small; they are as fast as trained ones.
Texts have 8 to 512 tokens, most of them few, and come as token ids, so no tokenizer is measured. ONNX
Runtime gets batches of ``--batch`` texts, sorted by length and padded to the longest, its usual way;
``--write-onnx FILE`` exports the same checkpoint for it (torch.onnx, which needs the package onnx).
Rounds of all alternate, and medians are told.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from transformers import BertConfig, BertModel

from galley import LLM

SHAPES: Final[dict[str, dict[str, int]]] = {
    "minilm": {"num_hidden_layers": 6, "intermediate_size": 1536},
    "bge-small": {"num_hidden_layers": 12, "intermediate_size": 1536},
}
VOCAB: Final = 30522


def write_model(folder: Path, shape: str) -> BertModel:
    """A random BERT of that shape: width 384, 12 heads."""
    torch.manual_seed(0)
    config = BertConfig(vocab_size=VOCAB, hidden_size=384, num_attention_heads=12, **SHAPES[shape])
    model = BertModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(folder)
    return model


def texts(count: int, seed: int = 0) -> list[list[int]]:
    """Token ids; lengths from 8 to 512, evenly by their logarithm."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.uniform(np.log(8), np.log(512), count)).astype(int)
    return [rng.integers(1000, VOCAB, length).tolist() for length in lengths]


class _Rows(torch.nn.Module):
    """What is exported: token ids and mask -> rows of the last layer."""

    def __init__(self, model: BertModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[batch, length] of both -> [batch, length, width]."""
        rows: torch.Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return rows


def write_onnx(model: BertModel, file: Path) -> None:
    """The rows of the last layer, of batches and lengths of any size."""
    ids = torch.ones(2, 16, dtype=torch.int64)
    names = ["input_ids", "attention_mask"]
    axes = {name: {0: "batch", 1: "length"} for name in (*names, "rows")}
    torch.onnx.export(
        _Rows(model),
        (ids, ids),
        str(file),
        input_names=names,
        output_names=["rows"],
        dynamic_axes=axes,
        dynamo=False,
    )


def onnx_runner(file: Path, threads: int, batch: int) -> Callable[[list[list[int]]], Any]:
    """What makes vectors, averaged and of length 1, with ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def run(prompts: list[list[int]]) -> Any:
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        found: list[Any] = [None] * len(prompts)
        for first in range(0, len(order), batch):
            places = order[first : first + batch]
            longest = len(prompts[places[-1]])
            ids = np.zeros((len(places), longest), np.int64)
            mask = np.zeros_like(ids)
            for row, place in enumerate(places):
                ids[row, : len(prompts[place])] = prompts[place]
                mask[row, : len(prompts[place])] = 1
            [rows] = session.run(None, {"input_ids": ids, "attention_mask": mask})
            mean = (rows * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            for row, place in enumerate(places):
                found[place] = mean[row] / np.linalg.norm(mean[row])
        return np.stack(found)

    return run


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="minilm")
    parser.add_argument("--kinds", nargs="+", default=["float32", "bf16", "int8"])
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--step-tokens", type=int, default=2048)
    parser.add_argument("--onnx", type=Path, nargs="*", default=[], help="files to run, too")
    parser.add_argument("--write-onnx", type=Path, help="export the model and run that")
    args = parser.parse_args()
    prompts = texts(args.texts)
    tokens = sum(map(len, prompts))
    runs: dict[str, Callable[[list[list[int]]], Any]] = {}
    with tempfile.TemporaryDirectory() as made:
        model = write_model(Path(made), args.shape)
        for kind in args.kinds:
            llm = LLM(
                made,
                quantize=kind,
                threads=args.threads,
                max_batch_tokens=args.step_tokens,
                weight_cache=False,
            )
            runs[f"galley {kind}"] = llm.embed
        if args.write_onnx is not None:
            write_onnx(model, args.write_onnx)
            args.onnx.append(args.write_onnx)
        for file in args.onnx:
            runs[f"onnxruntime {file.name}"] = onnx_runner(file, args.threads, args.batch)
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        vectors = {name: run(prompts[:16]) for name, run in runs.items()}
        for _ in range(args.rounds):
            for name, run in runs.items():
                began = time.perf_counter()
                run(prompts)
                seconds[name].append(time.perf_counter() - began)
    first = next(iter(vectors.values()))
    print(f"{args.shape}: {len(prompts)} texts, {tokens} tokens, {args.threads} threads")
    for name, times in seconds.items():
        middle = statistics.median(times)
        close = float((vectors[name] * first).sum(1).min())
        print(
            f"{name:<28} {len(prompts) / middle:8.1f} texts/s {tokens / middle:9.0f} tokens/s   "
            f"least cosine to the first {close:.5f}"
        )


if __name__ == "__main__":
    main()
