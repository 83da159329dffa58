"""The device of the kernels' tests: Triton's interpreter, or the GPU that GALLEY_TEST_DEVICE names.

Import it before anything of ``galley.ops.triton``, which cannot be imported without triton.
``tests/conftest.py`` makes Triton interpret.
"""

import inspect
import os
from typing import Any, Final

import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install 'galley-inference[gpu]'")

DEVICE: Final = os.environ.get("GALLEY_TEST_DEVICE", "cpu")
ON_GPU: Final = DEVICE != "cpu"

import torch
from triton import language
from triton.runtime import interpreter

from galley.ops.triton.tiles import Device, device_of

TYPES: Final = [torch.float32, torch.float16, *([torch.bfloat16] if ON_GPU else [])]
"""Types of activations; the interpreter's bfloat16 products are wrong (triton-lang/triton#11584)."""

ERRORS: Final = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Type -> the greatest error relative to the result's norm."""


_patch_language = interpreter._patch_lang


def _patch_once(function: Any) -> Any:
    """Replace the language's functions by interpreted ones, unless they already are.

    Triton's interpreter does it again for every function that a kernel calls, which takes a quarter of the
    time and changes nothing.
    """
    used = (m for m in function.__globals__.values() if inspect.ismodule(m))
    modules = [m for m in used if m in (language, language.core)]
    if modules and not any(language.core.is_builtin(m.load) for m in modules):
        return interpreter._LangPatchScope()
    return _patch_language(function)


interpreter._patch_lang = _patch_once


def device() -> Device:
    return device_of(DEVICE) if ON_GPU else Device("cpu", 0)


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the error's norm over all rows, relative to that of ``wanted``; NaN never passes."""
    difference = got.double().cpu() - wanted.double().cpu()
    return float(difference.norm() / wanted.double().norm())
