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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

os.environ.pop("TRITON_INTERPRET", None)  # interpreted kernels cannot be compiled

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from scripts.gpu_steps import KINDS, SHAPES, Work, run_step

TARGETS: Final = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}

SHARED_LIMIT: Final = {"sm_80": 163, "sm_89": 99, "sm_90": 227, "sm_100": 227, "gfx942": 64}
"""Most KiB of shared memory of a block."""

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


@dataclass(frozen=True)
class Launch:
    """A kernel with everything needed to compile it."""

    function: JITFunction[Any]
    about: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    divisible: tuple[int, ...]
    options: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """Return the name of the kernel."""
        name: str = self.function.__name__
        return name


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
        run_step(kind, work, capability, layers, shape)
    finally:
        JITFunction.run = original
    return list(found)


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
    return Launch(function, about, *made)


def compiled(launch: Launch, target: str) -> Compiled:
    """Compile a launch; raises whatever the compiler raises."""
    attrs = {(i,): [["tt.divisibility", 16]] for i in launch.divisible}
    source = ASTSource(launch.function, dict(launch.signature), dict(launch.constants), attrs)
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
