"""galley quantize with mixtures of experts, against compressed-tensors and transformers."""

import filecmp
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from galley import LLM, SamplingParams, UnsupportedModel
from galley.calibration.experts import expert_ops
from galley.calibration.held_out import Texts, held_apart
from galley.calibration.matrices import linear_weights
from galley.calibration.measures import Divergence, Loss, following
from galley.calibration.quantize import Method, Plan, Quantizer
from galley.engine.read_model import Model, read_model
from galley.ops.choice import choose_executor
from galley.quant.grid import Scheme
from galley.settings.engine import EngineSettings
from tests.checkpoints import random_ids
from tests.cli.command import galley
from tests.conftest import CheckpointMaker

WINDOWS = [random_ids(seed, 48) for seed in range(25)]
TEXTS = held_apart(WINDOWS)
FEW = held_apart(WINDOWS[:9])
SCHEME = Scheme(4, 16)


def model_of(folder: Path) -> Model:
    settings = EngineSettings(dtype="float32", kv_dtype="float32", threads=1)
    return read_model(settings, folder)


def quantizer(
    folder: Path, out: Path, method: Method, only: str = "", texts: Texts = TEXTS
) -> Quantizer:
    """Return the quantization of all matrices, or of those whose names contain ``only``."""
    model = model_of(folder)
    names = [name for name in linear_weights(model.program) if only in name]
    plan = Plan(method, dict.fromkeys(names, SCHEME))
    return Quantizer(model, choose_executor("auto", "cpu")[1], out, plan, texts)


def as_dense(folder: Path, quantized: Path, out: Path) -> Path:
    """Write a copy of ``folder`` with the values that compressed-tensors reads from the other folder."""
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("*.safetensors*"))
    read = {k: v for path in quantized.glob("*.safetensors") for k, v in load_file(path).items()}
    dense = {}
    for name, tensor in read.items():
        module, _, kind = name.rpartition(".")
        if kind == "weight_packed":
            scale = read[f"{module}.weight_scale"].float()
            columns = int(read[f"{module}.weight_shape"][1])
            whole = scale.shape[1] == 1
            arguments = QuantizationArgs(
                num_bits=4,
                strategy="channel" if whole else "group",
                group_size=None if whole else columns // scale.shape[1],
            )
            parts = {
                "weight_packed": tensor,
                "weight_scale": scale,
                "weight_shape": read[f"{module}.weight_shape"],
            }
            scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
            dense[f"{module}.weight"] = PackedQuantizationCompressor.decompress(parts, scheme)[
                "weight"
            ]
        elif kind not in ("weight_scale", "weight_shape"):
            dense[name] = tensor
    save_file(dense, out / "model.safetensors", {"format": "pt"})
    return out


def in_transformers(folder: Path) -> AutoModelForCausalLM:
    return AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        experts_implementation="eager",  # others require widths of whole cache lines
    )


def loss_in_transformers(folder: Path, dense: Path) -> Loss:
    base, made = in_transformers(folder), in_transformers(dense)
    divergence = Divergence()
    for window in TEXTS.measured:
        with torch.inference_mode():
            p, q = (m(torch.tensor([window])).logits[0].numpy() for m in (base, made))
        divergence.add(p, q, following([window]))
    return divergence.loss()


@pytest.mark.parametrize(
    ("variant", "method"),
    [("mixtral", "gptq"), ("qwen2-moe", "gptq"), ("qwen3-moe", "rtn"), ("glm4-moe", "mse")],
)
def test_the_file_has_the_loss_that_is_reported(
    checkpoint: CheckpointMaker, tmp_path: Path, variant: str, method: Method
) -> None:
    folder, out = checkpoint(variant), tmp_path / "out"
    reported = quantizer(folder, out, method).run()
    dense = as_dense(folder, out, tmp_path / "dense")
    assert loss_in_transformers(folder, dense).kl == pytest.approx(reported.kl, rel=0.02)
    stored = {k for path in out.glob("*.safetensors") for k in load_file(path)}
    experts = [name for name in stored if ".experts." in name]
    assert experts
    assert all(".weight_" in name for name in experts)
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    routers = {name.removesuffix(".weight") for name in model_of(folder).program.routers}
    assert routers <= set(config["ignore"])
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    with LLM(out, activations="float32", kv_dtype="float32", kv_cache_tokens=256, threads=1) as llm:
        [said] = llm.generate([WINDOWS[0]], greedy)
    with torch.inference_mode():
        ids = torch.tensor([[*WINDOWS[0], *said.token_ids[:-1]]])
        logits = in_transformers(dense)(ids).logits[0]
    assert logits[len(WINDOWS[0]) - 1 :].argmax(-1).tolist() == said.token_ids


def test_experts_are_calibrated_with_their_own_rows(
    checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    folder = checkpoint("mixtral")
    kls = {}
    for method in ("gptq", "mse"):
        made = quantizer(folder, tmp_path / method, method, only=".experts.")
        kls[method] = made.run().kl
        assert not made.hardly_reached
    assert kls["gptq"] < 0.9 * kls["mse"]


def test_experts_that_calibration_hardly_reaches_are_named(
    checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    """Only experts are quantized, so the routes of the first layer are those of the original."""
    folder, out = checkpoint("qwen3-moe"), tmp_path / "out"
    made = quantizer(folder, out, "gptq", ".layers.0.mlp.experts.", FEW)
    made.run()
    [op, *_] = expert_ops(model_of(folder).program)
    rows = np.zeros(len(op.weights["gate"]), int)
    model = in_transformers(folder)
    for window in FEW.calibration:
        with torch.inference_mode():
            found = model(torch.tensor([window]), output_router_logits=True)
        chosen = found.router_logits[0].topk(op.attrs["per_token"]).indices
        rows += np.bincount(chosen.flatten().numpy(), minlength=len(rows))
    few = rows < op.width
    assert 0 < few.sum() < len(rows)
    expected = {f"model.layers.0.mlp.experts.{i}": int(rows[i]) for i in np.flatnonzero(few)}
    assert made.hardly_reached == expected
    written = json.loads((out / "config.json").read_text())
    assert written["galley_quantize"]["hardly_reached"] == expected


def test_an_interrupted_run_goes_on_and_writes_the_same(
    checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    folder, whole, broken = checkpoint("qwen3-moe"), tmp_path / "whole", tmp_path / "broken"
    quantizer(folder, whole, "gptq", texts=FEW).run()

    class Interrupted(Exception):
        pass

    def interrupt(name: str) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        quantizer(folder, broken, "gptq", texts=FEW).run(interrupt)
    again = quantizer(folder, broken, "gptq", texts=FEW)
    assert again.hardly_reached  # in the first layer
    again.run()
    names = sorted(path.name for path in whole.iterdir())
    assert filecmp.cmpfiles(whole, broken, names, shallow=False)[0] == names


def test_what_cannot_be_quantized_is_refused(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="awq does not support models with experts"):
        quantizer(checkpoint("mixtral"), tmp_path / "out", "awq")
    with pytest.raises(UnsupportedModel, match="latent attention"):
        quantizer(checkpoint("deepseek-v3"), tmp_path / "out", "rtn")
    with pytest.raises(UnsupportedModel, match=r"input_linear\.weight holds all experts"):
        quantizer(checkpoint("granite-hybrid"), tmp_path / "out", "rtn")


def test_the_command_names_them_and_refuses_what_is_not_supported(
    checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    folder = checkpoint("qwen3-moe")
    done = galley(
        "quantize", folder, tmp_path / "out", "--group", 16, "--tokens", 400, "--context", 48
    )
    assert done.returncode == 0, done.stderr
    assert "experts were reached by fewer calibration tokens" in done.stdout
    assert "model.layers.0.mlp.experts." in done.stdout
    done = galley("quantize", folder, tmp_path / "mixed", "--max-kl", 1)
    assert done.returncode == 2
    assert "--max-kl does not support models with experts" in done.stderr
