"""Implement ``make gpu-check``: measure a model's speed on this GPU, then test its kernels' results.

    python -m scripts.gpu_check [--shape llama-8b] [--kinds KIND ...] [--layers N] [--skip-numbers]
        [--output FILE]

The model has Llama 3.1 8B's shape (or ``--shape``) and random weights. Its speed is compared with the rates
at which this GPU reads memory and multiplies matrices. Then the tests in ``tests/ops/triton``, which
elsewhere run in Triton's interpreter, run on the GPU. Those that divide a model among two GPUs need two.
"""

import argparse
import datetime
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from galley.formats.weights import WeightKind, mxfp4_kind
from galley.graph.program import Program
from galley.lab.random_weights import RandomWeights
from galley.models.registry import build_program
from galley.ops.batch import Batch
from galley.ops.draws import GREEDY
from galley.ops.executor import ExecutorOptions, execute
from galley.ops.sampling import SamplingBatch
from galley.ops.triton.executor import TritonExecutor
from galley.types import BLOCK_TOKENS, blocks_for

ROOT: Final = Path(__file__).parents[1]

_LLAMA: Final[dict[str, Any]] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
_QWEN: Final[dict[str, Any]] = {
    "model_type": "qwen3_moe",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
}
_GPT_OSS: Final[dict[str, Any]] = {
    "model_type": "gpt_oss",
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "tie_word_embeddings": False,
}


class Shape(NamedTuple):
    """The public model of a shape, its title in figures, and its config.json."""

    model: str
    title: str
    config: dict[str, Any]


SHAPES: Final = {
    "llama-8b": Shape("Llama 3.1 8B", "8-billion shape", _LLAMA),
    "qwen3-30b-a3b": Shape("Qwen3 30B-A3B", "30-billion mixture's shape", _QWEN),
    "gpt-oss-20b": Shape("gpt-oss 20B", "20-billion mixture's shape", _GPT_OSS),
}

KINDS: Final = ("bf16", "fp8", "int4", "int8", "mxfp4")
"""Types of weights; "mxfp4" is that of experts, and the others are bfloat16."""

BATCHES: Final = (1, 8, 32, 128)
CONTEXT: Final = 512
"""Tokens of each sequence when decoding is measured."""

PROMPT: Final = 2048
STEPS: Final = 24
READ_TARGET: Final = 80.0
PREFILL_TARGET: Final = 70.0


def kinds_of(program: Program, weight_dtype: str) -> dict[str, WeightKind]:
    """Return the kinds of the tensors that are read as integers or MXFP4: quantizing would take minutes."""
    rounded = {n: program.shapes[n] for n in program.matrices - program.routers if "embed" not in n}
    if weight_dtype in ("int4", "int8"):
        return dict.fromkeys(rounded, WeightKind(weight_dtype, 128, "BF16"))
    if weight_dtype == "mxfp4":
        experts = {n: s for n, s in rounded.items() if ".experts." in n and len(s) == 2}
        return {name: mxfp4_kind(depth) for name, (_, depth) in experts.items()}
    return {}


def timed(launch: Callable[[], object], repeats: int) -> float:
    """Return the median seconds."""
    times = []
    for _ in range(repeats):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        launch()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) / 1000)
    return float(statistics.median(times))


def ceilings() -> tuple[float, float]:
    """Measure (bytes read per second, operations per second of a bfloat16 product) on this GPU."""
    values = torch.ones(1 << 30, device="cuda")
    read = 4 * len(values) / timed(lambda: torch.sum(values), 7)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = 2 * 8192**3 / timed(lambda: a @ b, 9)
    return read, product


class Bench:
    """An executor of the shape, and its timed steps."""

    def __init__(self, weight_dtype: str, layers: int, shape: str) -> None:
        self.program = build_program({**SHAPES[shape].config, "num_hidden_layers": layers})
        options = ExecutorOptions(
            dtype="bfloat16",
            weight_dtype="bf16" if weight_dtype in ("int4", "int8", "mxfp4") else weight_dtype,
            kv_dtype="bfloat16",
            device="cuda",
            threads=1,
            kinds={"model.embed_tokens.weight": "bf16"},
        )
        weights = RandomWeights(self.program, kinds_of(self.program, weight_dtype))
        began = time.perf_counter()
        self.executor = TritonExecutor(self.program, weights, options)
        torch.cuda.synchronize()
        self.load_seconds = time.perf_counter() - began
        self.blocks = blocks_for(CONTEXT + 2 * STEPS + BLOCK_TOKENS)
        self.executor.allocate_kv(max(BATCHES) * self.blocks + 1)
        self.costs = self.executor.step_costs()

    def prefill(self, tokens: int) -> float:
        """Return the seconds of a step with a whole prompt."""
        batch = Batch(
            tokens=np.arange(tokens) % 1000,
            positions=np.arange(tokens),
            starts=np.array([0, tokens]),
            tables=(np.arange(blocks_for(tokens)),) * self.executor.kv_groups,
            wanted=np.array([tokens - 1]),
        )
        sampling = SamplingBatch()
        sampling.draw(0, tokens, GREEDY)
        return self._seconds([batch] * 7, sampling)

    def decode(self, sequences: int) -> float:
        """Return the seconds of a step in which ``sequences`` decode after CONTEXT tokens.

        As in the engine, each step is submitted while the one before it runs.
        """
        sampling = SamplingBatch()
        for s in range(sequences):
            sampling.draw(s, 0, GREEDY)
        rows = np.arange(sequences)
        batches = [
            Batch(
                tokens=-1 - rows if step else rows,  # the draws of the step before
                positions=np.full(sequences, CONTEXT + step),
                starts=np.arange(sequences + 1),
                tables=tuple(s * self.blocks + np.arange(self.blocks) for s in range(sequences))
                * self.executor.kv_groups,
                wanted=rows,
            )
            for step in range(STEPS)
        ]
        running = self.executor.submit(batches[0], sampling)
        times = [time.perf_counter()]
        for batch in batches[1:]:
            following = self.executor.follow(running, batch, sampling)
            self.executor.collect(running)
            times.append(time.perf_counter())
            assert following is not None, "greedy tokens are drawn on the device"
            running = following
        self.executor.collect(running)
        # The first steps compile and capture.
        return statistics.median(b - a for a, b in itertools.pairwise(times[3:]))

    def _seconds(self, batches: list[Batch], sampling: SamplingBatch) -> float:
        """Return the median of all but the first three, which compile and capture."""
        times = []
        for batch in batches:
            began = time.perf_counter()
            execute(self.executor, batch, sampling)
            times.append(time.perf_counter() - began)
        return statistics.median(times[3:])


def measure(
    weight_dtype: str, layers: int, shape: str, read: float, product: float
) -> list[dict[str, Any]]:
    """Measure the figures of one kind of weights."""
    bench = Bench(weight_dtype, layers, shape)
    width = sum(op.width for op in bench.program.ops if op.name == "attention")
    print(f"{weight_dtype}: loaded in {bench.load_seconds:.1f} s", flush=True)
    found: list[dict[str, Any]] = []
    for tokens in (512, PROMPT):
        seconds = bench.prefill(tokens)
        operations = tokens * bench.costs.row_operations + bench.costs.logit_operations
        # Causal attention computes half a square, for two products.
        operations += 2 * width * tokens**2
        share = 100 * operations / seconds / product
        found.append({"phase": "prefill", "size": tokens, "held": tokens == PROMPT, "share": share})
        found[-1] |= {"ms": 1e3 * seconds, "tokens/s": tokens / seconds}
    for sequences in BATCHES:
        seconds = bench.decode(sequences)
        size = bench.costs.weights_read(sequences)
        size += sequences * CONTEXT * bench.costs.kv_bytes_per_token
        share = 100 * size / seconds / read
        found.append({"phase": "decode", "size": sequences, "held": sequences == 1, "share": share})
        found[-1] |= {"ms": 1e3 * seconds, "tokens/s": sequences / seconds}
    for one in found:
        one["kind"] = weight_dtype
        print(
            f"{weight_dtype} {one['phase']} {one['size']}: {one['ms']:.2f} ms, "
            f"{one['tokens/s']:.1f} tokens/s, {one['share']:.1f} % of the GPU's measured rate",
            flush=True,
        )
    return found


def two_gpus(count: int) -> str:
    """Return what is tested of models that are divided among GPUs, of which there are ``count``."""
    if count < 2:
        return f"models divided among GPUs (tensor_parallel): skipped, because this machine has {count} GPU"
    return f"models divided among GPUs (tensor_parallel): tested on 2 of {count} GPUs"


def numbers() -> int:
    """Run the tests of the kernels and of whole models on the GPU, or on two."""
    print(two_gpus(torch.cuda.device_count()), flush=True)
    workers = str(max(1, min(12, (os.cpu_count() or 2) - 2)))
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "tests/ops/triton"]
    environ = {**os.environ, "GALLEY_TEST_DEVICE": "cuda"}
    environ.pop("TRITON_INTERPRET", None)
    return subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode


def machine(
    figures: list[dict[str, Any]],
    name: str,
    read: float,
    product: float,
    shape: str = "llama-8b",
    layers: int | None = None,
) -> dict[str, Any]:
    """Return a file of ``benchmarks/results`` from the ``figures`` of each kind of weights.

    ``layers`` is their number where they are not all of the shape's.
    """
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    command, measured = "make gpu-check", f"{SHAPES[shape].model}'s shape"
    if (shape, layers) != ("llama-8b", None):
        command = f"python -m scripts.gpu_check --shape {shape}"
    if layers is not None:
        command += f" --layers {layers}"
        measured += f" with {layers} of its {SHAPES[shape].config['num_hidden_layers']} layers"
    entries: list[dict[str, Any]] = []
    for kind in dict.fromkeys(figure["kind"] for figure in figures):
        for phase, unit, target in (
            ("prefill", "% of the measured multiply rate", PREFILL_TARGET),
            ("decode", "% of the measured read rate", READ_TARGET),
        ):
            mine = [f for f in figures if (f["kind"], f["phase"]) == (kind, phase)]
            common = {"date": date, "command": command}
            at = [f"{f['size']} {'tokens' if phase == 'prefill' else 'sequences'}" for f in mine]
            what = f"{SHAPES[shape].title} on a GPU, {kind}: {phase}"
            rates = [round(f["tokens/s"], 1) for f in mine]
            shares = [round(f["share"], 1) for f in mine]
            entries.append({"what": what, "unit": "tokens/s", "at": at, "measured": rates} | common)
            entries.append(
                {"what": what + ", share", "unit": unit, "at": at, "measured": shares} | common
            )
            held = next(i for i, f in enumerate(mine) if f["held"])
            entries.append(
                {"what": what + ", target", "unit": unit, "at": at[held : held + 1]}
                | {"measured": shares[held : held + 1], "target": [target]}
                | common
            )
    return {
        "name": name,
        "description": f"One {name}, torch {torch.__version__}: reads {read / 1e12:.2f} TB/s, multiplies "
        f"bfloat16 at {product / 1e12:.0f} TFLOP/s, both measured in the same run. "
        f"{measured}, random weights, {CONTEXT} tokens of context when decoding.",
        "figures": entries,
    }


def main() -> int:
    """Measure and print; raise SystemExit if there is no GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="*", default=KINDS[:3], choices=KINDS)
    parser.add_argument("--shape", default="llama-8b", choices=SHAPES)
    parser.add_argument("--layers", type=int, help="number of layers; default: all of the shape's")
    parser.add_argument("--skip-numbers", action="store_true")
    parser.add_argument("--output", type=Path, help="results file; default: in benchmarks/results")
    arguments = parser.parse_args()
    config = SHAPES[arguments.shape].config
    if "mxfp4" in arguments.kinds and not any("experts" in key for key in config):
        parser.error("--kinds mxfp4 is a type of experts: add --shape gpt-oss-20b")
    if not torch.cuda.is_available():
        raise SystemExit(
            "gpu-check needs a CUDA GPU, and torch finds none: run galley doctor for the reason"
        )
    read, product = ceilings()
    print(f"reads {read / 1e12:.2f} TB/s, multiplies {product / 1e12:.0f} TFLOP/s", flush=True)
    figures: list[dict[str, Any]] = []
    layers = arguments.layers or config["num_hidden_layers"]
    for weight_dtype in arguments.kinds:
        figures += measure(weight_dtype, layers, arguments.shape, read, product)
        torch.cuda.empty_cache()
    name = torch.cuda.get_device_name()
    slug = name.lower().replace(" ", "-")
    if (arguments.shape, arguments.layers) != ("llama-8b", None):
        slug += f"-{arguments.shape}" + (f"-{layers}-layers" if arguments.layers else "")
    file = arguments.output or ROOT / f"benchmarks/results/gpu-{slug}.json"
    content = machine(figures, name, read, product, arguments.shape, arguments.layers)
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"written: {file}", flush=True)
    return 0 if arguments.skip_numbers else numbers()


if __name__ == "__main__":
    sys.exit(main())
