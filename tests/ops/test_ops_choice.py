"""Default choice of executor and types, and the errors when none fits."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from galley import LLM, SamplingParams
from galley.calibration.forward import TeacherForced
from galley.engine.loaders import load_engine
from galley.errors import SettingsError
from galley.lab.bench import Lab
from galley.lab.roundings import material
from galley.ops.choice import choose_executor
from galley.ops.executor import forward
from galley.settings.engine import DType, EngineSettings, ExecutorName, WeightDType
from tests.checkpoints import random_ids
from tests.conftest import CheckpointMaker
from tests.lab.findings import PEAKS
from tests.missing import without
from tests.native.harness import ragged, rounding_executor
from tests.server.serving import Server

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
IDS = [[5, 6, 7, 8]]


@pytest.fixture
def no_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "galley._native", None)


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)


def test_the_device_chooses_and_a_name_is_kept() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    assert choose_executor("auto", "cpu")[0] == "cpu"
    assert choose_executor("auto", "cuda:1")[0] == "gpu"
    assert choose_executor("auto", "cuda:0,cuda:1")[0] == "gpu"
    assert choose_executor("auto", "xpu")[0] == "reference"
    assert choose_executor("reference", "cpu")[0] == "reference"


@pytest.mark.usefixtures("no_native")
@pytest.mark.parametrize("weight_dtype", ["auto", "int4"])
def test_the_reference_executor_serves_where_the_native_one_is_missing(
    weight_dtype: WeightDType, checkpoint: CheckpointMaker, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        LLM(checkpoint("llama"), weight_dtype=weight_dtype) as llm,
    ):
        assert (llm.info.executor, llm.info.require_program().weight_dtype) == (
            "reference",
            "float32" if weight_dtype == "auto" else "int4",
        )
        assert len(llm.generate(IDS, GREEDY)[0].token_ids) == 8
    [warning] = caplog.messages
    assert "galley._native" in warning
    assert "C++17 compiler" in warning
    assert "Using the reference executor" in warning


@pytest.mark.usefixtures("no_native")
def test_selecting_the_native_executor_is_an_error_where_it_is_missing(
    checkpoint: CheckpointMaker,
) -> None:
    with pytest.raises(SettingsError, match=r"'cpu' needs galley\._native.*C\+\+17 compiler"):
        LLM(checkpoint("llama"), executor="cpu")


@pytest.mark.usefixtures("no_torch")
def test_the_reference_executor_says_what_it_needs(checkpoint: CheckpointMaker) -> None:
    with pytest.raises(
        SettingsError, match=r"'reference' needs torch.*'galley-inference\[torch\]'"
    ):
        LLM(checkpoint("llama"), executor="reference")
    with pytest.raises(SettingsError, match=r"'reference' needs torch"):
        LLM(checkpoint("llama"), device="cuda")


def test_the_gpu_executor_says_what_it_needs(
    checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(SettingsError, match=r"'gpu' needs triton.*'galley-inference\[gpu\]'"):
        LLM(checkpoint("llama"), executor="gpu", device="cuda")


def test_without_triton_a_gpu_is_used_slowly_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with caplog.at_level(logging.WARNING):
        assert choose_executor("auto", "cuda")[0] == "reference"
    [warning] = caplog.messages
    assert "executor 'gpu' needs triton" in warning
    assert "galley-inference[gpu]" in warning
    assert "Using the reference executor" in warning


def test_an_old_gpu_is_used_slowly_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    capability = {"cuda": (7, 5), "cuda:1": (8, 0)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", capability.__getitem__)
    assert choose_executor("auto", "cuda:1,cuda:0")[0] == "gpu"
    assert choose_executor("gpu", "cuda:1")[0] == "gpu"
    assert caplog.messages == []
    assert choose_executor("auto", "cuda")[0] == "reference"
    [warning] = caplog.messages
    assert "needs compute capability 8.0 or later, but cuda has 7.5" in warning
    assert "Using the reference executor" in warning
    with pytest.raises(SettingsError, match=r"compute capability 8\.0"):
        choose_executor("gpu", "cuda")


def test_a_model_without_kernels_is_run_by_the_reference_executor_on_a_gpu(
    checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The choice is that for a GPU; the device is this test's CPU."""
    pytest.importorskip("triton", reason="triton is not installed")
    on_gpu = choose_executor("auto", "cuda")
    monkeypatch.setattr("galley.engine.loading.choose_executor", lambda *_: on_gpu)
    for variant, executor in (("granite-hybrid", "reference"), ("llama", "gpu")):
        caplog.clear()
        folder = checkpoint(variant)
        settings = EngineSettings(
            model=str(folder), kv_cache_tokens=64, threads=1, speculation="off"
        )
        with caplog.at_level(logging.WARNING):
            assert load_engine(settings, folder).info.executor == executor
        if executor == "reference":
            [warning] = caplog.messages
            assert "has no kernel for op" in warning
            assert "Using the reference executor" in warning
        else:
            assert caplog.messages == []


def test_a_model_without_kernels_is_also_measured_by_the_reference_executor(
    checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    on_gpu = choose_executor("auto", "cuda")
    monkeypatch.setattr("galley.calibration.forward.choose_executor", lambda *_: on_gpu)
    folder = checkpoint("granite-hybrid")
    settings = EngineSettings(model=str(folder), threads=1, dtype="float32")
    with TeacherForced(settings, folder, longest=4) as model:
        found = [rows.copy() for _, rows in model.logits(IDS[0])]
    assert [rows.shape[0] for rows in found] == [4]
    assert np.isfinite(found[0]).all()


def test_a_model_without_kernels_is_also_rounded_by_the_reference_executor(
    checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    on_gpu = choose_executor("auto", "cuda")
    _, reference = choose_executor("reference", "cpu")
    monkeypatch.setattr("galley.lab.roundings.choose_executor", lambda *_: on_gpu)
    folder = checkpoint("granite-hybrid")
    settings = EngineSettings(model=str(folder), threads=1, dtype="float32")
    found = material(Lab(settings, quick=True, peaks=PEAKS))
    assert found.factory is reference
    assert found.texts.calibration
    assert found.texts.measured


@pytest.mark.usefixtures("no_native", "no_torch")
def test_with_neither_the_error_says_what_to_install(checkpoint: CheckpointMaker) -> None:
    with pytest.raises(SettingsError, match=r"no executor.*a wheel.*Or.*galley-inference\[torch\]"):
        LLM(checkpoint("llama"))


def test_a_server_warns_once_and_serves(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    folder, environ = checkpoint("llama"), without(tmp_path, "galley._native")
    with Server(folder, tmp_path / "log", environ=environ, threads=1) as server:
        answer = server.openai().completions.create(
            model=folder.name, prompt=[5, 6, 7], max_tokens=4, temperature=0
        )
    assert answer.usage is not None
    assert server.log.count("WARNING galley.ops: executor 'cpu' needs galley._native") == 1


def test_a_server_without_any_executor_does_not_start(
    checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "galley", "serve", str(checkpoint("llama")), "--port", "0"],
        env=os.environ | without(tmp_path, "galley._native", "torch"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot start: no executor can run here" in done.stderr
    assert "galley-inference[torch]" in done.stderr


def in_halves(
    source: Path, target: Path, dtype: torch.dtype = torch.bfloat16, *, keep_head: bool = False
) -> Path:
    """Copy the checkpoint with matrices of two bytes per element; ``keep_head``: all but the output's."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    head = model.lm_head.weight.data.clone()
    model.to(dtype)
    if keep_head:
        model.lm_head.weight.data = head
    model.save_pretrained(target)
    return target


@pytest.mark.parametrize("executor", ["cpu", "reference"])
def test_types_follow_the_checkpoint(
    executor: ExecutorName, checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    whole = checkpoint("llama")
    half = in_halves(whole, tmp_path / "half")
    mixed = in_halves(whole, tmp_path / "mixed", keep_head=True)
    f16 = in_halves(whole, tmp_path / "f16", torch.float16)

    def types(
        folder: Path, dtype: DType = "auto", weight_dtype: WeightDType = "auto"
    ) -> tuple[str, str]:
        with LLM(folder, dtype=dtype, weight_dtype=weight_dtype, executor=executor) as llm:
            return llm.info.require_program().dtype, llm.info.require_program().weight_dtype

    assert types(whole) == ("float32", "float32")
    assert types(half) == ("bfloat16", "bf16")
    assert types(mixed) == ("float32", "float32")
    assert types(f16) == ("float32", "f16")
    assert types(f16, dtype="float32") == ("float32", "float32")
    assert types(half, dtype="float32") == ("float32", "float32")
    assert types(half, weight_dtype="int8") == ("bfloat16", "int8")
    assert types(whole, dtype="bfloat16", weight_dtype="int4") == ("bfloat16", "int4")


def test_a_float16_checkpoint_gives_the_logits_of_its_values_in_float32(
    checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    folder = in_halves(checkpoint("llama"), tmp_path / "f16", torch.float16)
    batch = ragged([(random_ids(1, 40), 40)], first_block=0)

    def logits(executor: ExecutorName, dtype: DType) -> tuple[Any, int]:
        settings = EngineSettings(
            model=str(folder), executor=executor, dtype=dtype, kv_cache_tokens=64, threads=1
        )
        made = load_engine(settings, folder)._executor
        return forward(made, batch).copy(), made.step_costs().weight_bytes

    half, half_bytes = logits("cpu", "auto")
    whole, whole_bytes = logits("cpu", "float32")
    truth, _ = logits("reference", "auto")
    assert half_bytes < 0.6 * whole_bytes
    assert np.abs(half - whole).max() <= 1e-5 * np.abs(whole).max()
    assert np.abs(half - truth).max() <= 1e-5 * np.abs(truth).max()


@pytest.mark.parametrize("weight_dtype", ["bf16", "f16", "int8", "int4"])
def test_the_reference_executor_rounds_weights_too(
    weight_dtype: WeightDType, checkpoint: CheckpointMaker
) -> None:
    folder = checkpoint("llama")
    rounded = rounding_executor(folder, weight_dtype)
    batch = ragged([(random_ids(1, 40), 40)], first_block=0)
    settings = EngineSettings(
        executor="reference",
        dtype="float32",
        weight_dtype=weight_dtype,
        kv_cache_tokens=64,
        threads=1,
    )
    executor = load_engine(settings, folder)._executor
    assert np.array_equal(forward(executor, batch), forward(rounded, batch))
