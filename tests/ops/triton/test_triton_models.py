"""Whole models on the GPU executor: transformers' tokens, the reference executor's logits, bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ops.triton.device import DEVICE, ON_GPU

import torch
from transformers import AutoModelForCausalLM

from galley import LLM, SamplingParams
from galley.engine.loaders import load_engine
from galley.settings.engine import EngineSettings
from galley.errors import SettingsError, UnsupportedModel
from galley.ops.executor import Executor
from galley.ops.triton import executor as gpu
from galley.ops.triton import steps
from galley.ops.triton.supported import SUPPORTED
from tests.checkpoints import random_ids
from tests.conftest import CheckpointMaker
from tests.models.chunks import run_chunks
from tests.thorough import unless

FAMILIES = [
    "llama-mqa-odd",
    *(
        unless(ON_GPU, variant)
        for variant in ("mistral-window", "mixtral", "qwen2-window", "qwen3", "phi3")
    ),
    "gemma2",
    "starcoder2",
    "gpt_neox",
    "cohere",
    "deepseek-v2",
    *(["qwen3-moe", "glm4-moe", "deepseek-v3"] if ON_GPU else []),
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
PROMPTS = [random_ids(20 + n, n) for n in (1, 37)]


@pytest.mark.parametrize("variant", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(variant: str, checkpoint: CheckpointMaker) -> None:
    folder = checkpoint(variant)
    with LLM(
        folder,
        executor="gpu",
        device=DEVICE,
        dtype="float32",
        max_batch_tokens=32,
        kv_cache_tokens=256,
        speculation="off",
        threads=1,
    ) as llm:
        got = [output.token_ids for output in llm.generate(PROMPTS, GREEDY)]
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",  # others require widths of whole cache lines
    ).eval()
    for prompt, text in zip(PROMPTS, got, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *text[:-1]]])).logits[0]
        assert text == logits[len(prompt) - 1 :].argmax(-1).tolist()


def executor_of(folder: Path, executor: str, **changes: Any) -> Executor:
    settings = {"dtype": "float32", "kv_cache_tokens": 4096, "threads": 1, "speculation": "off"}
    settings |= {"executor": executor, "device": DEVICE if executor == "gpu" else "cpu"}
    return load_engine(
        EngineSettings(model=str(folder), **{**settings, **changes}), folder
    ).executor


KINDS: list[tuple[dict[str, Any], dict[str, Any], float]] = [
    ({"weight_dtype": "int8"}, {"activations": "float32"}, 1e-5),
    ({"weight_dtype": "int4"}, {"activations": "float32"}, 1e-5),
    ({"kv_dtype": "int8"}, {}, 1e-4),
    ({"kv_dtype": "int4"}, {}, 1e-4),
    ({"weight_dtype": "f16"}, {}, 1e-2),
    *([({"weight_dtype": "int4"}, {"dtype": "bfloat16"}, 1e-1)] if ON_GPU else []),
]


@pytest.mark.parametrize(("both", "own", "most"), KINDS)
def test_logits_are_those_of_the_reference_executor(
    both: dict[str, Any], own: dict[str, Any], most: float, checkpoint: CheckpointMaker
) -> None:
    folder, ids = checkpoint("llama"), random_ids(1, 20)
    wanted = run_chunks(executor_of(folder, "reference", **both), ids, [20], first_block=2)
    got = run_chunks(executor_of(folder, "gpu", **both, **own), ids, [20], first_block=2)
    assert np.linalg.norm(got - wanted) <= most * np.linalg.norm(wanted)


@pytest.mark.parametrize(
    ("variant", "both", "most"),
    [("gpt-oss", {}, 1e-5), ("llama4", {}, 1e-5), ("deepseek-v2", {"kv_dtype": "int8"}, 1e-4)],
)
def test_experts_and_latents_have_the_reference_executor_s_logits(
    variant: str, both: dict[str, Any], most: float, checkpoint: CheckpointMaker
) -> None:
    """Experts with biases and clamping, or with scaled inputs; a latent with two scales."""
    folder, ids = checkpoint(variant), random_ids(1, 20)
    wanted = run_chunks(executor_of(folder, "reference", **both), ids, [20], first_block=2)
    made = executor_of(folder, "gpu", **both, activations="float32")
    got = run_chunks(made, ids, [20], first_block=2)
    assert np.linalg.norm(got - wanted) <= most * np.linalg.norm(wanted)


BITS = ["llama-mqa-odd", "gemma2", *(["mixtral", "deepseek-v2"] if ON_GPU else [])]


@pytest.mark.parametrize("variant", BITS)
def test_bits_do_not_depend_on_chunks(variant: str, checkpoint: CheckpointMaker) -> None:
    """A step of one row is a graph on a GPU, and uses separate attention kernels everywhere."""
    made = executor_of(checkpoint(variant), "gpu", dtype="bfloat16" if ON_GPU else "float32")
    ids = random_ids(1, 40)
    whole = run_chunks(made, ids, [40], first_block=5)
    assert np.array_equal(run_chunks(made, ids, [18, 1, 1, 20], first_block=12), whole)


def test_texts_are_the_same_if_steps_follow_others_early(
    checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows whose tokens are drawn by the step before, on the device; one request ends before the others."""
    follow, followed = gpu.TritonExecutor.follow, []

    def counted(self: gpu.TritonExecutor, *given: Any) -> object:
        followed.append(follow(self, *given))
        return followed[-1]

    monkeypatch.setattr(gpu.TritonExecutor, "follow", counted)
    many = [
        SamplingParams(temperature=t, top_k=k, seed=7, max_tokens=n, ignore_eos=True)
        for t, k, n in ((0.0, 0, 7), (0.9, 0, 4), (0.8, 9, 6))
    ]
    prompts = [random_ids(50 + n, n) for n in (3, 9, 5)]
    texts = []
    for ahead in (True, False):
        settings: dict[str, Any] = {"executor": "gpu", "device": DEVICE, "speculation": "off"}
        with LLM(
            checkpoint("llama-mqa-odd"), dtype="float32", kv_cache_tokens=256, threads=1, **settings
        ) as llm:
            if not ahead:
                monkeypatch.setattr(llm._local.engine, "_following", None)
            texts.append([output.token_ids for output in llm.generate(prompts, many)])
    assert texts[0] == texts[1]
    assert len(followed) == 6
    assert None not in followed


def test_supported_ops_are_those_with_builders() -> None:
    assert steps._BUILDERS.keys() == SUPPORTED


def test_memory_is_what_is_kept(checkpoint: CheckpointMaker) -> None:
    for weight_dtype in ("float32", "int4"):
        made = executor_of(checkpoint("llama"), "gpu", weight_dtype=weight_dtype)
        costs = made.step_costs()
        assert isinstance(made, gpu.TritonExecutor)
        assert costs.weight_bytes <= made.steps.weight_bytes
        assert made.kv_bytes_per_block() == 16 * costs.kv_bytes_per_token


def test_a_cache_that_does_not_fit_the_device_names_the_setting(
    checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate too much")

    monkeypatch.setattr(gpu, "new_cache", full)
    with pytest.raises(SettingsError, match=r"keys and values need .*; set kv_cache_tokens"):
        executor_of(checkpoint("llama"), "gpu")


def test_a_model_with_ops_that_have_no_kernel_is_refused_and_named(
    checkpoint: CheckpointMaker,
) -> None:
    named = "executor 'gpu' has no kernel for op .*use executor cpu"
    with pytest.raises(UnsupportedModel, match=named):
        executor_of(checkpoint("granite-hybrid"), "gpu")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"activations": "int8"}, "activations is 'int8'"),
        ({"experts": "disk"}, "experts is 'disk'"),
    ],
)
def test_unsupported_settings_are_refused_and_named(
    changes: dict[str, Any], named: str, checkpoint: CheckpointMaker
) -> None:
    with pytest.raises(SettingsError, match=named):
        executor_of(checkpoint("llama"), "gpu", **changes)


def test_int4_latents_are_refused_and_named(checkpoint: CheckpointMaker) -> None:
    with pytest.raises(SettingsError, match=r"keeps the latents .* as float32, bfloat16"):
        executor_of(checkpoint("deepseek-v2"), "gpu", kv_dtype="int4")


def test_without_a_gpu_the_error_says_so(
    checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "INTERPRETED", False)
    with pytest.raises(SettingsError, match="device is 'cpu', but executor 'gpu' needs a GPU"):
        executor_of(checkpoint("llama"), "gpu", device="cpu")
    if not ON_GPU:
        with pytest.raises(SettingsError, match="cannot use device 'cuda'"):
            executor_of(checkpoint("llama"), "gpu", device="cuda")
