"""Measure texts per second of embedding models, and compare with peers on the same weights.

    python -m benchmarks.embeddings --peers HOME [--shape minilm] [--rounds 3] [--results FILE] [--quick]
    python -m benchmarks.embeddings [--shape minilm] [--rounds 3]   # Galley alone

Weights are random, in the shape of all-MiniLM-L6 or bge-small (by default both); speed does not depend on
their values. Text lengths are log-uniform from 8 to 512 tokens. Texts are passed as token ids; fastembed
and infinity get words that their tokenizer maps to one token each. Contenders that pad sort the texts by
length and use the fastest of several batch sizes; llama.cpp uses the fastest of several numbers of tokens
per batch. All contenders stay loaded, run in turn, and are stopped while another runs. Figures are medians
of the rounds. ``--quick`` is one round of few texts. Each contender's vectors are compared with Galley's in
float32.
"""

import argparse
import os
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table
from scripts.benchmarks_page import Figure

from benchmarks.peers.bert_checkpoint import SHAPES, VOCAB, write_bert
from benchmarks.peers.child import Child
from benchmarks.peers.contest import HOME
from benchmarks.peers.install import PeerFailed
from benchmarks.peers.turns import Turns
from benchmarks.results_file import machine_file, put
from galley.machine import available_cores

COMMAND: Final = "python -m benchmarks.embeddings --peers HOME"
OURS: Final = [("galley_embed", kind) for kind in ("float32", "bf16", "int8")]
PEERS: Final = [
    ("onnx_runtime", "float32"),
    ("onnx_runtime", "int8"),
    ("onnx_runtime", "fastembed float32"),
    ("openvino_embed", "float32"),
    ("openvino_embed", "bf16"),
    ("openvino_embed", "int8"),
    ("llama_embed", "F32"),
    ("llama_embed", "F16"),
    ("llama_embed", "Q8_0"),
    ("infinity", "float32"),
]
NAMES: Final = {
    "onnx_runtime": "ONNX Runtime",
    "openvino_embed": "OpenVINO",
    "llama_embed": "llama.cpp",
    "infinity": "infinity",
}
WHOLE: Final = ("float32", "F32")
"""Suffixes of the names of contenders that compute in float32."""


def texts(count: int, seed: int = 0) -> list[list[int]]:
    """Return random token ids; lengths are log-uniform from 8 to 512."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.uniform(np.log(8), np.log(512), count)).astype(int)
    return [rng.integers(1000, VOCAB, length).tolist() for length in lengths]


def cosines(
    turns: Turns, children: dict[str, Child], prompts: Sequence[list[int]]
) -> dict[str, float]:
    """Return the lowest similarity of each contender's vectors to the first's; failures are left out."""
    found = {}
    for name, child in list(children.items()):
        try:
            found[name] = np.array([child.ask({"vector": ids}) for ids in prompts])
        except PeerFailed as error:
            turns.failures[name] = str(error)
            del children[name], turns.seconds[name]
    first = next(iter(found.values()))
    return {name: float((vectors * first).sum(1).min()) for name, vectors in found.items()}


def measure(
    shape: str, wanted: argparse.Namespace, console: Console
) -> tuple[Turns, dict[str, float]]:
    """Measure each contender's time for all texts and its similarity to the float32 vectors."""
    checkpoint = wanted.home / "checkpoints" / shape
    if not (checkpoint / "model.safetensors").exists():
        write_bert(checkpoint, shape)
    prompts = texts(wanted.texts)
    turns = Turns({"texts": {"texts": prompts}})
    with ExitStack() as stack:
        children = turns.prepare(
            [*OURS, *(PEERS if wanted.peers else [])],
            checkpoint,
            threads=wanted.threads,
            home=wanted.home,
            stack=stack,
            console=console,
        )
        near = cosines(turns, children, [*prompts[:3], texts(1, seed=1)[0]])
        for number in range(wanted.rounds + 1):
            turns.round(children, warm_up=number == 0)
            console.print(f"round {number} of {wanted.rounds}")
    return turns, near


def show(shape: str, turns: Turns, near: dict[str, float], console: Console) -> None:
    """Format a row for each contender, and list those left out."""
    prompts = turns.requests["texts"]["texts"]
    tokens = sum(map(len, prompts))
    table = Table(
        f"{shape}: {len(prompts)} texts, {tokens} tokens", "texts/s", "tokens/s", "cosine"
    )
    for name, measured in turns.seconds.items():
        if seconds := measured["texts"]:
            middle = statistics.median(seconds)
            rates = (f"{len(prompts) / middle:.1f}", f"{tokens / middle:.0f}")
            table.add_row(called(name), *rates, f"{near[name]:.5f}")
    console.print(table)
    for name, reason in turns.failures.items():
        console.print(f"left out: {name}: {reason}", style="red", highlight=False)


def called(contender: str) -> str:
    """Return the contender's public name with its variant."""
    module, _, variant = contender.partition(" ")
    return (
        variant if variant.startswith("fastembed") else f"{NAMES.get(module, 'Galley')} {variant}"
    )


def figures(shape: str, turns: Turns, near: dict[str, float]) -> list[Figure]:
    """Return Galley's ratios: float32 to the best float32 peer, each weight type to the best peer."""
    peers = [name for name in turns.seconds if not name.startswith("galley")]
    whole = [name for name in peers if name.endswith(WHOLE)]
    if not any(turns.median(name, "texts") for name in peers):
        return []
    kinds = [f"{module} {kind}" for module, kind in OURS]
    ratios = [turns.ratio("galley_embed float32", "texts", whole)]
    ratios += [turns.ratio(name, "texts") for name in kinds]
    count = len(turns.requests["texts"]["texts"])
    rates = "; ".join(
        f"{called(name)} {count / seconds:.3g} (cosine {near[name]:.4f})"
        for name in turns.seconds
        if (seconds := turns.median(name, "texts"))
    )
    return [
        Figure(
            what=f"embeddings, {shape} shape, texts of 8 to 512 tokens, compared with peers",
            unit="ratio",
            at=("float32 to float32", *(f"{kind} to the best" for _, kind in OURS)),
            measured=tuple(None if r is None else round(r, 2) for r in ratios),
            target=(2,),
            peer=", ".join(map(called, peers)),
            date=datetime.now(UTC).date().isoformat(),
            command=COMMAND,
            remark=f"texts/s: {rates}",
        )
    ]


def main() -> None:
    """Measure, print, and write the figures if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, action="append", default=[])
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--peers", type=Path, metavar="HOME", help="compare with peers, installed in this folder"
    )
    parser.add_argument("--quick", action="store_true", help="one round of 48 texts")
    parser.add_argument(
        "--results", type=machine_file, help="also write the figures to this results file"
    )
    wanted = parser.parse_args()
    wanted.home = wanted.peers or HOME
    if wanted.quick:
        wanted.rounds, wanted.texts = 1, 48
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is on disk by now
    console, made = Console(), []
    for shape in wanted.shape or ["minilm", "bge-small"]:
        turns, near = measure(shape, wanted, console)
        show(shape, turns, near, console)
        made += figures(shape, turns, near)
    if wanted.results:
        put(wanted.results, made)


if __name__ == "__main__":
    main()
