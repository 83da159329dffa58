"""What vLLM reads from the environment, where it is not installed, too."""

import os
import sys
from pathlib import Path

import pytest

from galley.errors import SettingsError
from galley.runtimes.text_build import TextSizes
from galley.runtimes.vllm import VLLMOptions, VLLMRuntime


def test_threads_are_those_of_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "7"}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setitem(sys.modules, "vllm", None)
    sizes = TextSizes(
        context=64,
        running=2,
        step_tokens=64,
        kv_tokens=128,
        kv_requested=None,
        threads=3,
        vocabulary=100,
        kv_bytes_per_token=64,
    )
    with pytest.raises(SettingsError, match="vllm"):
        VLLMRuntime(tmp_path, VLLMOptions(), sizes)
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
