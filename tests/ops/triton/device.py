"""The device of the kernels' tests: Triton's interpreter, or the GPU that GALLEY_TEST_DEVICE names.

Import it before anything of ``galley.ops.triton``, which cannot be imported without triton.
``tests/conftest.py`` makes Triton interpret.
"""

import os
from typing import Final

import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install 'galley-inference[gpu]'")

DEVICE: Final = os.environ.get("GALLEY_TEST_DEVICE", "cpu")
ON_GPU: Final = DEVICE != "cpu"

import torch

from galley.ops.triton.tiles import Device, device_of

TYPES: Final = [torch.float32, torch.float16, *([torch.bfloat16] if ON_GPU else [])]
"""Of activations; the interpreter's products of bfloat16 are wrong (triton-lang/triton#11584)."""

ERRORS: Final = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Type -> the greatest error of a result beside its norm."""


def device() -> Device:
    return device_of(DEVICE) if ON_GPU else Device("cpu", 0)


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the error's norm over all rows, relative to that of ``wanted``; NaN never passes."""
    difference = got.double().cpu() - wanted.double().cpu()
    return float(difference.norm() / wanted.double().norm())
