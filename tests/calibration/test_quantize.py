"""galley quantize: its output, against compressed-tensors and transformers; interruptions; refusals."""

import dataclasses
import filecmp
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from galley import LLM, SamplingParams, SettingsError, UnsupportedModel
from galley.calibration.compressed import tensors_of, write_tensors
from galley.calibration.forward import TeacherForced
from galley.calibration.held_out import held_apart
from galley.calibration.matrices import linear_weights
from galley.calibration.measures import Divergence, Loss, following
from galley.calibration.quantize import (
    INPUTS,
    METHODS,
    Method,
    Plan,
    Quantizer,
    copy_others,
)
from galley.engine.read_model import Model, read_model
from galley.formats.values import dequantize
from galley.ops.choice import choose_executor
from galley.quant.grid import Scheme, nearest
from galley.settings.engine import Activations, EngineSettings
from tests.checkpoints import random_ids, with_outliers
from tests.cli.command import galley
from tests.conftest import CheckpointMaker

WINDOWS = [random_ids(seed, 48) for seed in range(17)]
HELD_OUT = WINDOWS[::8]
SMALL = Scheme(4, 16)


@pytest.fixture(scope="module")
def folder(checkpoint: CheckpointMaker) -> Path:
    return checkpoint("llama-mha-tied")


def model_of(folder: Path) -> Model:
    settings = EngineSettings(dtype="float32", kv_dtype="float32", threads=1)
    return read_model(settings, folder)


def quantizer(folder: Path, out: Path, method: Method = "rtn", scheme: Scheme = SMALL) -> Quantizer:
    model = model_of(folder)
    plan = Plan(method, dict.fromkeys(linear_weights(model.program), scheme))
    return Quantizer(model, choose_executor("auto", "cpu")[1], out, plan, held_apart(WINDOWS))


def loss_in_transformers(folder: Path, out: Path) -> Loss:
    base, made = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (folder, out)
    )
    divergence = Divergence()
    for window in HELD_OUT:
        with torch.inference_mode():
            p, q = (m(torch.tensor([window])).logits[0].numpy() for m in (base, made))
        divergence.add(p, q, following([window]))
    return divergence.loss()


def says_what_transformers_says(out: Path, prompt: list[int]) -> None:
    """Check that Galley's greedy text is transformers' likeliest token at each position."""
    exact: dict[str, Any] = {"activations": "float32", "kv_dtype": "float32", "threads": 1}
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    with LLM(out, kv_cache_tokens=256, **exact) as llm:
        [said] = llm.generate([prompt], greedy)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *said.token_ids[:-1]]])).logits[0]
    assert logits[len(prompt) - 1 :].argmax(-1).tolist() == said.token_ids


def loss_beside(folder: Path, out: Path, *, activations: Activations) -> Loss:
    """Return Galley's loss relative to the original, with inputs of layers as ``activations``."""
    divergence = Divergence()
    base = EngineSettings(dtype="float32", kv_dtype="float32", threads=1)
    rounded = dataclasses.replace(base, activations=activations)
    with (
        TeacherForced(base, folder, longest=48) as truth,
        TeacherForced(rounded, out, longest=48) as forced,
    ):
        for window in HELD_OUT:
            p, q = (
                np.concatenate([x.copy() for _, x in m.logits(window)]) for m in (truth, forced)
            )
            divergence.add(p, q, following([window]))
    return divergence.loss()


@pytest.mark.parametrize("outputs", [16, 21])
@pytest.mark.parametrize(
    "scheme",
    [Scheme(4, 32), Scheme(4, 16, symmetric=False), Scheme(4), Scheme(8), Scheme(8, 32)],
    ids=str,
)
def test_compressed_tensors_reads_the_same_values(
    tmp_path: Path, scheme: Scheme, outputs: int
) -> None:
    values = np.random.default_rng(0).standard_normal((outputs, 96)).astype(np.float32)
    weight = nearest("a.weight", values, scheme)
    write_tensors(tmp_path / "a.safetensors", tensors_of(weight))
    read = {name[2:]: t for name, t in load_file(tmp_path / "a.safetensors").items()}
    arguments = QuantizationArgs(
        num_bits=scheme.bits,
        symmetric=scheme.symmetric,
        strategy="group" if scheme.group else "channel",
        group_size=scheme.group or None,
    )
    read["weight_scale"] = read["weight_scale"].float()
    whole = QuantizationScheme(targets=["Linear"], weights=arguments)
    found = PackedQuantizationCompressor.decompress(read, whole)["weight"]
    assert np.array_equal(found.numpy(), dequantize(weight))


@pytest.mark.parametrize("method", [m for m in METHODS if m not in INPUTS])
def test_transformers_loads_it_and_finds_the_same_loss(
    folder: Path, tmp_path: Path, method: Method
) -> None:
    report = quantizer(folder, tmp_path / "out", method).run()
    found = loss_in_transformers(folder, tmp_path / "out")
    assert found.kl == pytest.approx(report.kl, rel=0.02)
    assert found.perplexity == pytest.approx(report.perplexity, rel=0.005)
    receipt = json.loads((tmp_path / "out" / "config.json").read_text())["galley_quantize"]
    assert receipt["method"] == method
    assert receipt["kl"] == report.kl
    assert bool(receipt["calibration"]) == (method in ("gptq", "awq"))
    says_what_transformers_says(tmp_path / "out", HELD_OUT[0])


@pytest.mark.parametrize(
    ("variant", "method", "scheme"),
    [
        ("llama-head-dim-bias", "gptq", Scheme(8)),
        ("qwen3", "gptq", Scheme(4, 32)),  # wider than what divides the rows
        ("cohere", "awq", Scheme(8)),  # one norm for all, and a head that is not last
        ("gpt_neox", "awq", Scheme(8)),
    ],
)
def test_other_shapes_and_kinds(
    checkpoint: CheckpointMaker, tmp_path: Path, variant: str, method: Method, scheme: Scheme
) -> None:
    report = quantizer(checkpoint(variant), tmp_path / "out", method, scheme).run()
    found = loss_in_transformers(checkpoint(variant), tmp_path / "out")
    assert found.kl == pytest.approx(report.kl, rel=0.02, abs=1e-6)


def test_smoothquant_spares_a_model_with_outliers_what_rounding_its_inputs_costs(
    tmp_path: Path,
) -> None:
    folder = with_outliers(tmp_path / "outliers")
    losses = {}
    for method in ("rtn", "smoothquant"):
        out = tmp_path / method
        report = quantizer(folder, out, method, Scheme(8)).run()
        losses[method] = loss_beside(folder, out, activations="int8")
        assert report.kl == pytest.approx(losses[method].kl, rel=0.05) or method == "rtn"
    assert losses["smoothquant"].kl < losses["rtn"].kl / 10
    # In transformers, whose inputs stay floats, the folded scales change nothing.
    assert loss_in_transformers(folder, tmp_path / "smoothquant").kl < losses["smoothquant"].kl


def rounding(inputs: str, scale: float) -> Callable[[Any, Any], tuple[Tensor]]:
    """Return a hook that rounds a layer's inputs to int8 with that scale, or with one for each token."""

    def hook(module: Any, given: tuple[Tensor]) -> tuple[Tensor]:
        [rows] = given
        step = rows.abs().amax(-1, keepdim=True) / 127.5 if inputs == "dynamic" else scale
        return ((rows / step).round().clamp(-128, 127) * step,)

    return hook


@pytest.mark.parametrize("inputs", ["dynamic", "mse"])
def test_transformers_rounds_inputs_as_the_file_says(
    checkpoint: CheckpointMaker, tmp_path: Path, inputs: str
) -> None:
    """The expected result is that of the same weights with float inputs, rounded here."""
    folder, data, outs = checkpoint("llama"), tmp_path / "data.txt", []
    data.write_text("the cat sat on the mat and the dog too " * 60)
    for which in (inputs, "float"):
        outs.append(tmp_path / which)
        options = ("--bits", "8", "--group", "0", "--method", "gptq", "--inputs", which)
        galley("quantize", folder, outs[-1], *options, "--data", data, "--tokens", "600")
    rounded, plain = (AutoModelForCausalLM.from_pretrained(o, dtype=torch.float32) for o in outs)
    tensors = {k: v for f in outs[0].glob("*.safetensors") for k, v in load_file(f).items()}
    scales = {k: float(v) for k, v in tensors.items() if k.endswith("input_scale")}
    assert len(scales) == (0 if inputs == "dynamic" else 14)
    ids = torch.tensor([HELD_OUT[0]])
    with torch.inference_mode():
        before, got = plain(ids).logits, (rounded(ids), rounded(ids))[1].logits
        for name, module in plain.named_modules():
            if name.endswith("_proj"):
                scale = scales.get(f"{name}.input_scale", 0.0)
                module.register_forward_pre_hook(rounding(inputs, scale))
        expected = plain(ids).logits
    assert (got - expected).abs().max() < 0.05 * (before - expected).abs().max()
    said = []
    for out in outs:  # with this setting, each token and group has its own scale
        with LLM(out, activations="int8", kv_cache_tokens=256, threads=1) as llm:
            said += llm.generate([HELD_OUT[0]], SamplingParams(temperature=0.0, max_tokens=8))
    assert said[0].token_ids == said[1].token_ids
    if inputs != "dynamic":
        as_the_file_says = torch.from_numpy(logits_of(outs[0], "auto"))
        other = torch.from_numpy(logits_of(outs[0], "int8"))
        missed = (before - got[0]).abs().max()
        # Galley has no step of -128, which clipping makes frequent.
        assert (as_the_file_says - got[0]).abs().max() < 0.2 * missed
        assert (other - got[0]).abs().max() > 0.5 * missed


def logits_of(folder: Path, activations: Activations) -> "np.ndarray[Any, Any]":
    """Return Galley's logits for the first text that is held out."""
    settings = EngineSettings(activations=activations, kv_dtype="float32", threads=1)
    with TeacherForced(settings, folder, longest=48) as model:
        return np.concatenate([rows.copy() for _, rows in model.logits(HELD_OUT[0])])


def test_an_interrupted_run_resumes_and_writes_the_same(folder: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    quantizer(folder, whole, "gptq").run()

    class Interrupted(Exception):
        pass

    def interrupt(name: str) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        quantizer(folder, broken, "gptq").run(interrupt)
    again = quantizer(folder, broken, "gptq")
    assert (again.done, len(again.layers)) == (1, 2)
    with pytest.raises(SettingsError, match="contains a run with other"):
        quantizer(folder, broken, "awq")
    again.run()
    names = sorted(path.name for path in whole.iterdir())
    assert names == sorted(path.name for path in broken.iterdir())
    assert filecmp.cmpfiles(whole, broken, names, shallow=False)[0] == names
    with pytest.raises(SettingsError, match="not empty"):
        quantizer(folder, broken, "gptq")


def test_what_cannot_be_quantized_is_refused(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="is a speech model"):
        quantizer(checkpoint("whisper"), tmp_path / "out")
    done = galley("quantize", checkpoint("llama"), tmp_path / "out", "--bits", 8, "--zero-points")
    assert done.returncode == 2
    assert "--zero-points" in done.stderr


def test_the_command(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--group", 16, "--tokens", 600, "--context", 48, "--ignore", "down_proj")
    done = galley("quantize", folder, out, *arguments)
    assert done.returncode == 0, done.stderr
    assert "held out: text that the base generated" in done.stdout
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert "model.layers.0.mlp.down_proj" in config["ignore"]
    assert config["config_groups"]["group_0"]["weights"]["group_size"] == 16
    assert (out / "tokenizer.json").exists()
    assert "calibration text of" in galley("cache", "list").stdout
    again = galley("quantize", folder, out, *arguments)
    assert again.returncode == 2
    assert "not empty" in again.stderr


def test_a_single_text_is_enough_for_what_does_not_calibrate(folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "one.txt"
    text.write_text("please call me back tomorrow morning about the order of last week")
    arguments = ("--data", text, "--group", 16, "--tokens", 64)
    done = galley("quantize", folder, tmp_path / "mse", "--method", "mse", *arguments)
    assert done.returncode == 0, done.stderr
    tokens = len(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text.read_text()).ids)
    assert f" on {tokens - 1} tokens of {text}" in done.stdout
    for number, calibrating in enumerate(
        (("--method", "gptq"), ("--method", "rtn", "--max-kl", 1))
    ):
        refused = galley("quantize", folder, tmp_path / str(number), *calibrating, *arguments)
        assert refused.returncode == 2
        assert "give more text, or a smaller --context" in refused.stderr
    windows = ("--method", "gptq", *arguments, "--context", 16)
    done = galley("quantize", folder, tmp_path / "gptq", *windows)
    assert done.returncode == 0, done.stderr
    assert f"held out: {text}" in done.stdout


def test_templates_with_names_are_copied(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    (source / "additional_chat_templates").mkdir(parents=True)
    (source / "onnx").mkdir()
    for name in ("tokenizer.json", "additional_chat_templates/tool_use.jinja", "onnx/x.json"):
        (source / name).write_text(name)
    out.mkdir()
    copy_others(source, out)
    copied = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert copied == {"tokenizer.json", "additional_chat_templates/tool_use.jinja"}
