"""Compile the GPU executor's kernels as it launches them, for several GPUs, without a driver or a GPU.

    python -m scripts.gpu_report

Each launch of a step of Llama 3.1 8B's shape is intercepted before it runs, with its argument types and
tile size, then compiled for each target. Prints the resources that the compiler reports: the table of
docs/native-gpu.md.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

os.environ.pop("TRITON_INTERPRET", None)  # interpreted kernels cannot be compiled

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from galley.formats.weights import (
    MXFP4_GROUP,
    MXFP4_KIND,
    DenseWeight,
    IntWeight,
    Mxfp4Weight,
    TensorInfo,
    Weight,
    WeightKind,
    Weights,
    mxfp4_kind,
)
from galley.graph.adapters import with_adapters
from galley.graph.passes import run_passes
from galley.graph.program import Op, Program
from galley.models.registry import build_program
from galley.ops.batch import Batch
from galley.ops.triton.adapters import Adapters
from galley.ops.triton.attention import Cache, EncoderAttention, key_stride, rows_of_tiles
from galley.ops.triton.parts import Parts
from galley.ops.triton.sampler import Draws
from galley.ops.triton.step_batch import Staging, shape_of, tiles_of
from galley.ops.triton.steps import Steps
from galley.ops.triton.tiles import Device

SHAPE: Final[dict[str, Any]] = {
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}

MIXTURE: Final[dict[str, Any]] = {
    "model_type": "deepseek_v3",
    "vocab_size": 2048,
    "hidden_size": 2048,
    "intermediate_size": 1024,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 0,
    "n_routed_experts": 32,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
"""Experts and latent attention; each layer has adapters, too."""

SHAPES: Final = {"dense": SHAPE, "mixture": MIXTURE}

TARGETS: Final = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}

SHARED_LIMIT: Final = {"sm_80": 163, "sm_89": 99, "sm_90": 227, "sm_100": 227, "gfx942": 64}
"""Most KiB of shared memory of a block."""

_CACHE: Final = 40 << 20
"""Bytes of the L2 cache of an A100; kernels of few rows fetch into it."""

_REGISTERS: Final = 65536
_MOST_WARPS: Final = {"sm_80": 64, "sm_89": 48, "sm_90": 64, "sm_100": 64, "gfx942": 32}
_SHARED_ALL: Final = {"sm_80": 164, "sm_89": 100, "sm_90": 228, "sm_100": 228, "gfx942": 64}

_TYPES: Final = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint64: "*u64",
    torch.float64: "*fp64",
}

KINDS: Final = {
    "bf16": WeightKind("bf16"),
    "fp8": WeightKind("fp8"),
    "int8": WeightKind("int8", 128, "BF16"),
    "int4": WeightKind("int4", 128, "BF16"),
    "mxfp4": mxfp4_kind(2048),
}


class Work(NamedTuple):
    """A step: sequences that decode one token each, and the tokens of a prompt beside them."""

    sequences: int
    prompt: int = 0

    @classmethod
    def parse(cls, text: str) -> "Work":
        """Read ``8``, ``0+512`` or ``8+512``: sequences, then tokens of a prompt."""
        sequences, _, prompt = text.partition("+")
        return cls(int(sequences), int(prompt or 0))

    def __str__(self) -> str:
        decoding = f"{self.sequences} decoding" if self.sequences else ""
        prompt = f"prompt of {self.prompt}" if self.prompt else ""
        return " + ".join(filter(None, (decoding, prompt)))


@dataclass(frozen=True)
class Launch:
    """A kernel with everything needed to compile it."""

    name: str
    about: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    divisible: tuple[int, ...]
    options: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Compiled:
    """The compiler's report on a launch; bytes and counts of a block or thread."""

    launch: Launch
    target: str
    registers: int
    spilled: int
    shared: int
    warps: int

    @property
    def occupancy(self) -> float:
        """Return the share of the multiprocessor's warps that can be resident."""
        warps, most = self.warps, _MOST_WARPS[self.target]
        lanes = 64 if self.target == "gfx942" else 32
        by_registers = _REGISTERS * (2 if lanes == 64 else 1)
        by_registers //= max(1, self.registers) * lanes * warps
        by_shared = (_SHARED_ALL[self.target] << 10) // (self.shared + 1024)
        return min(1.0, min(by_registers, by_shared, most // warps) * warps / most)


class _Zeros(Weights):
    """Tensors of the shape, of a kind; they are never copied to a device."""

    def __init__(self, program: Program, kind: WeightKind) -> None:
        self._program, self._kind = program, kind

    def info(self, name: str) -> TensorInfo:
        """See :class:`galley.formats.weights.Weights`."""
        return TensorInfo(self._program.shapes[name], WeightKind("bf16"))

    def __getitem__(self, name: str) -> Weight:
        shape, kind = self._program.shapes[name], self._kind
        coded = name in self._program.matrices and "embed" not in name
        if kind.name == MXFP4_KIND and coded:
            scales = np.ones((shape[0], -(-shape[1] // MXFP4_GROUP)), np.float32)
            return Mxfp4Weight(name, np.zeros(shape, np.uint8), MXFP4_GROUP, scales)
        if kind.is_integer and coded:
            bits, group = (4 if kind.name == "int4" else 8), kind.group
            q: Any = np.zeros(shape, np.uint8 if bits == 4 else np.int8)
            scales = np.zeros((shape[0], -(-shape[1] // group)), np.float32)
            assert kind.scale_type is not None
            return IntWeight(name, bits, q, group, scales, None, kind.scale_type)
        return DenseWeight(name, "BF16", shape, np.zeros(2 * int(np.prod(shape)), np.uint8))

    def __iter__(self) -> Iterator[str]:
        return iter(self._program.shapes)

    def __len__(self) -> int:
        return len(self._program.shapes)


def launches(
    kind: str, work: Work, capability: int, *, layers: int = 2, shape: str = "dense"
) -> list[Launch]:
    """Return the launches of a step."""
    found: dict[Launch, None] = {}

    def catch(function: Any, *args: Any, grid: object, warmup: bool, **kwargs: Any) -> None:
        found.setdefault(_launch(function, args, kwargs, f"{kind}, {work}"))

    original = JITFunction.run
    JITFunction.run = catch
    try:
        _step(kind, work, capability, layers, shape)
    finally:
        JITFunction.run = original
    return list(found)


def _step(
    kind: str, work: Work, capability: int, layers: int, shape: str, context: int = 1000
) -> None:
    program = build_program({**SHAPES[shape], "num_hidden_layers": layers})
    adapted = shape == "mixture"
    if adapted:
        program = with_adapters(program)
    wanted = KINDS[kind]
    dense = WeightKind("bf16")
    kinds = {name: dense if "embed" in name else wanted for name in program.matrices}
    program = run_passes(program.with_kinds(kinds))
    device = Device("meta", capability, _CACHE if capability else 0)
    adapters = Adapters(program, 4, 16, torch.bfloat16, device) if adapted else None
    weights = _Zeros(program, wanted)
    parts = Parts(program, weights, torch.bfloat16, device, kv_bits=0, adapters=adapters)
    steps = Steps(parts)
    for kv in program.kv:
        size = (8, kv.kv_heads, 16, key_stride(kv))
        keys = torch.empty(size, dtype=torch.bfloat16, device="meta")
        parts.caches.append(Cache(keys, keys, keys, keys, keys))
    batch = _batch(work, context, adapted=adapted)
    count = len(batch.wanted)
    single, tiles = tiles_of(batch, rows_of_tiles(program, device))
    staging = Staging(shape_of(batch, single, tiles), 1, device)
    logits = steps.run(staging.batch)
    Draws(count, logits.shape[1], device).launch(logits, greedy=False, sort=adapted)
    if adapted:
        attrs = {"heads": 16, "kv_heads": 16, "key_dim": 64, "value_dim": 64, "scale": 0.125}
        attrs |= {"before": -1, "after": -1, "exact": False}
        op = Op("encoder_attention", (0, 1, 2), (3,), (1024,), {}, attrs)
        rows_of = torch.empty((len(batch.tokens), 1024), dtype=torch.bfloat16, device="meta")
        EncoderAttention(op, device)(staging.batch, rows_of, rows_of, rows_of, rows_of)


def _batch(work: Work, context: int, *, adapted: bool) -> Batch:
    """Return a batch whose decoding sequences have ``context`` tokens, and whose prompt begins."""
    starts = [*range(work.sequences + 1), *([work.sequences + work.prompt] if work.prompt else [])]
    count, rows = len(starts) - 1, starts[-1]
    positions = [np.full(work.sequences, context), np.arange(work.prompt)]
    return Batch(
        tokens=np.zeros(rows, np.int64),
        positions=np.concatenate(positions),
        starts=np.array(starts),
        tables=(np.arange(max(work.prompt, context) // 16 + 1),) * count,
        wanted=np.array(starts[1:]) - 1,
        adapters=np.zeros(count, np.int64) if adapted else None,
    )


def _launch(function: Any, args: Sequence[Any], kwargs: dict[str, Any], about: str) -> Launch:
    names = function.arg_names
    given = dict(zip(names, args, strict=False)) | {n: v for n, v in kwargs.items() if n in names}
    options = {n: v for n, v in kwargs.items() if n not in names}
    fixed = {p.name for p in function.params if p.do_not_specialize}
    signature, constants, divisible = [], [], []
    for i, param in enumerate(function.params):
        value = given[param.name]
        if param.is_constexpr or (
            isinstance(value, int) and value == 1 and param.name not in fixed
        ):
            signature.append((param.name, "constexpr"))
            constants.append((param.name, value))
        elif isinstance(value, torch.Tensor):
            signature.append((param.name, _TYPES[value.dtype]))
            divisible.append(i)
        elif isinstance(value, float):
            signature.append((param.name, "fp32"))
        else:
            signature.append((param.name, "i32"))
            if value % 16 == 0 and param.name not in fixed:
                divisible.append(i)
    made = (tuple(signature), tuple(constants), tuple(divisible), tuple(sorted(options.items())))
    return Launch(function.__name__, about, *made)


def compiled(launch: Launch, target: str) -> Compiled:
    """Compile a launch; raises whatever the compiler raises."""
    function = _functions()[launch.name]
    attrs = {(i,): [["tt.divisibility", 16]] for i in launch.divisible}
    source = ASTSource(function, dict(launch.signature), dict(launch.constants), attrs)
    kernel = triton.compile(source, target=TARGETS[target], options=dict(launch.options))
    warps = dict(launch.options).get("num_warps", 4)
    if target == "gfx942":
        text = kernel.asm["amdgcn"]
        registers = int(re.findall(r"\.vgpr_count:\s+(\d+)", text)[0])
        spilled = int(re.findall(r"\.vgpr_spill_count:\s+(\d+)", text)[0])
    else:
        registers, spilled = _cubin_resources(kernel.asm["cubin"])
    return Compiled(launch, target, registers, spilled, kernel.metadata.shared, warps)


def _cubin_resources(cubin: bytes) -> tuple[int, int]:
    """Return (registers, bytes of stack and local memory) of the only kernel."""
    import triton.backends.nvidia

    tool = Path(next(iter(triton.backends.nvidia.__path__))) / "bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", said)
    assert found is not None, said
    registers, stack, local = map(int, found.groups())
    return registers, stack + local


def _functions() -> dict[str, Any]:
    from galley.ops.triton.kernels import (
        attention,
        elementwise,
        encoder_attention,
        experts,
        linear,
        norm,
        rope,
        rows,
        sample,
    )

    modules = (attention, elementwise, encoder_attention, experts, linear, norm, rope, rows, sample)
    return {name: f for m in modules for name, f in vars(m).items() if isinstance(f, JITFunction)}


def report(
    kinds: Sequence[str],
    works: Sequence[Work],
    targets: Sequence[str],
    *,
    layers: int = 2,
    shape: str = "dense",
) -> list[Compiled]:
    """Compile each launch once for each target. With one layer, its MLP has one row of a prompt."""
    jobs: dict[tuple[Launch, str], None] = {}
    for target in targets:
        capability = TARGETS[target].arch if target.startswith("sm") else 0
        seen: set[object] = set()
        for kind in kinds:
            for work in works:
                for launch in launches(kind, work, int(capability), layers=layers, shape=shape):
                    key = (launch.name, launch.signature, launch.constants, launch.options)
                    if key not in seen:
                        seen.add(key)
                        jobs[launch, target] = None
    return [compiled(*job) for job in jobs]


def main() -> int:
    """Print the table; return 1 if a kernel spills or uses too much shared memory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    works = [Work(1), Work(8), Work(32), Work(128), Work(0, 512), Work(8, 512)]
    parser.add_argument(
        "--steps",
        nargs="*",
        type=Work.parse,
        default=works,
        help="8: decoding; 8+512: and a prompt",
    )
    parser.add_argument("--targets", nargs="*", default=list(TARGETS))
    parser.add_argument("--shape", default="dense", choices=SHAPES)
    arguments = parser.parse_args()
    found = report(arguments.kinds, arguments.steps, arguments.targets, shape=arguments.shape)
    failed = 0
    print("| kernel | of | GPU | registers | spilled | shared memory, KiB | occupancy |")
    print("|---|---|---|---|---|---|---|")
    for one in found:
        failed |= one.spilled > 0 or one.shared > SHARED_LIMIT[one.target] << 10
        print(
            f"| {one.launch.name.removesuffix('_kernel')} | {one.launch.about} | {one.target} "
            f"| {one.registers} | {one.spilled} | {one.shared / 1024:.1f} | {one.occupancy:.0%} |"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
