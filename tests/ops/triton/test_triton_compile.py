"""Every kernel compiles for every GPU, without spills and within its shared memory; no driver is needed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.thorough import THOROUGH, long

pytest.importorskip("triton", reason="triton is not installed: pip install 'galley-inference[gpu]'")

ROOT = Path(__file__).parents[3]

REPORT = """
import json, sys
from scripts.gpu_report import SHARED_LIMIT, Work, report
shape, target, kinds, *steps = sys.argv[1:]
found = report(kinds.split(), [Work.parse(step) for step in steps], [target], layers=1, shape=shape)
print(json.dumps([
    (one.launch.name, one.target, one.registers, one.spilled, one.shared, SHARED_LIMIT[one.target],
     one.launch.about)
    for one in found
]))
"""

MOST_STACK = {"sm_80": 64, "sm_89": 64}
"""Bytes; the matrix instructions of these GPUs need more registers per thread."""


DENSE = {"linear_kernel", "attention_kernel", "norm_kernel", "rope_kernel", "gather_kernel"}
DENSE |= {"greatest_kernel", "choose_kernel", "sum_kernel", "draw_kernel"}
MIXTURE = {"route_kernel", "count_kernel", "place_kernel", "grouped_kernel", "sum_choices_kernel"}
MIXTURE |= {
    "attention_kernel",
    "encoder_attention_kernel",
    "sorted_sum_kernel",
    "sorted_draw_kernel",
}
SPEECH = {"im2col_kernel", "cross_weights_kernel", "encoder_attention_kernel"}
STEPS = {
    "dense": ["1", "0+96", "2+96", *(["1/int4", "0+96/int4"] if THOROUGH else [])],
    "mixture": ["1", "0+96"],
    "speech": ["1", "0+8"],
}
"""Shape -> steps: sequences that decode, tokens of a prompt, type of the cache."""
TARGETS = ["sm_80", "sm_89", "sm_90", "sm_100", "gfx942"]


@pytest.mark.parametrize("target", TARGETS if THOROUGH else ["sm_90", "gfx942"])
def test_kernels_compile_without_spills_and_fit_shared_memory(target: str, tmp_path: Path) -> None:
    kinds = ["bf16", "int4"] if THOROUGH or target == "sm_90" else ["bf16"]
    check("dense", target, kinds, DENSE, tmp_path)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", TARGETS if THOROUGH else ["sm_90"])
def test_kernels_of_experts_latents_and_adapters_do_so_too(target: str, tmp_path: Path) -> None:
    kinds = ["bf16", "int4"] if THOROUGH else ["bf16"]
    check("mixture", target, kinds, MIXTURE, tmp_path)


@long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_of_speech_models_do_so_too(target: str, tmp_path: Path) -> None:
    check("speech", target, ["bf16"], SPEECH, tmp_path)


def check(shape: str, target: str, kinds: list[str], kernels: set[str], cache: Path) -> None:
    environ = {**os.environ, "TRITON_CACHE_DIR": str(cache), "TRITON_INTERPRET": "0"}
    environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        [sys.executable, "-c", REPORT, shape, target, " ".join(kinds), *STEPS[shape]],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name for name, *_ in found} >= kernels
    if shape == "dense":
        # A launch of its own: prompts' tiles and decoding rows are not launched one after another.
        assert "attention_kernel" in [n for n, *_, about in found if "decoding + prompt" in about]
    for name, of, registers, spilled, shared, limit, _ in found:
        assert spilled <= MOST_STACK.get(of, 0), (name, of, registers)
        assert shared <= limit << 10, (name, of)
