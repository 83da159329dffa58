"""Every kernel compiles for every GPU, without spills and within its shared memory; no driver is needed."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.thorough import THOROUGH, long

pytest.importorskip("triton", reason="triton is not installed: pip install 'galley-inference[gpu]'")
pytestmark = pytest.mark.timeout(3600 if THOROUGH else 900)

ROOT = Path(__file__).parents[3]

REPORT = """
import json, sys
from scripts.gpu_report import SHARED_LIMIT, Work, report
answers = []
for shape, target, kinds, steps in json.loads(sys.argv[1]):
    try:
        found = report(kinds, [Work.parse(step) for step in steps], [target], layers=1, shape=shape)
    except Exception as error:
        answers.append(repr(error))
        continue
    answers.append([
        (one.launch.name, one.registers, one.spilled, one.shared, SHARED_LIMIT[target], one.launch.about)
        for one in found
    ])
print(json.dumps(answers))
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
    "dense": ["1", "0+96", "2+96", "1/int4", "0+96/int4"] if THOROUGH else ["2+96"],
    "mixture": ["1", "0+96"] if THOROUGH else ["2+96"],
    "speech": ["1", "0+8"],
}
"""Shape -> steps: sequences that decode, tokens of a prompt, type of the cache.

``2+96`` launches the kernels of decoding and those of prompts.
"""
TARGETS = ["sm_80", "sm_89", "sm_90", "sm_100", "gfx942"]

Found = tuple[str, int, int, int, int, str]


@dataclass(frozen=True)
class Case:
    """Kernels to compile for one GPU."""

    shape: str
    target: str
    kinds: tuple[str, ...] = ("bf16",)

    def __str__(self) -> str:
        return f"{self.shape}-{self.target}"


def cases(shape: str, *quick: Case) -> list[Case]:
    kinds = ("bf16",) if shape == "speech" else ("bf16", "int4")
    return [Case(shape, target, kinds) for target in TARGETS] if THOROUGH else [*quick]


DENSE_CASES = cases("dense", Case("dense", "sm_90", ("bf16", "int4")), Case("dense", "gfx942"))
MIXTURE_CASES = cases("mixture", Case("mixture", "sm_90"))
SPEECH_CASES = cases("speech")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, list[Found] | str]:
    """What the compiler reports of each case's kernels, or its error; from one process.

    A process takes seconds to import torch and to start a compiler.
    """
    environ = {**os.environ, "TRITON_INTERPRET": "0"}
    environ["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    )
    every = [*DENSE_CASES, *MIXTURE_CASES, *SPEECH_CASES]
    jobs = [(case.shape, case.target, case.kinds, STEPS[case.shape]) for case in every]
    done = subprocess.run(
        [sys.executable, "-c", REPORT, json.dumps(jobs)],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(every, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("case", DENSE_CASES, ids=str)
def test_kernels_compile_without_spills_and_fit_shared_memory(
    case: Case, found: dict[Case, list[Found] | str]
) -> None:
    kernels = check(case, found[case], DENSE)
    # A launch of its own: prompts' tiles and decoding rows are not launched one after another.
    assert any(n == "attention_kernel" and "decoding + prompt" in about for n, about in kernels)


@pytest.mark.parametrize("case", MIXTURE_CASES, ids=str)
def test_kernels_of_experts_latents_and_adapters_do_so_too(
    case: Case, found: dict[Case, list[Found] | str]
) -> None:
    check(case, found[case], MIXTURE)


@long
@pytest.mark.parametrize("case", SPEECH_CASES, ids=str)
def test_kernels_of_speech_models_do_so_too(
    case: Case, found: dict[Case, list[Found] | str]
) -> None:
    check(case, found[case], SPEECH)


def check(case: Case, found: list[Found] | str, kernels: set[str]) -> list[tuple[str, str]]:
    """Check what was found; return the name and the step of each kernel."""
    assert not isinstance(found, str), found
    assert {name for name, *_ in found} >= kernels
    for name, registers, spilled, shared, limit, _ in found:
        assert spilled <= MOST_STACK.get(case.target, 0), (name, registers)
        assert shared <= limit << 10, name
    return [(name, about) for name, *_, about in found]
