"""``make gpu-check`` writes a valid file of benchmarks/results."""

import json
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install 'galley-inference[gpu]'")

from scripts.benchmarks_page import pages, read_results
from scripts.gpu_check import kinds_of, machine

from galley.lab.random_weights import RandomWeights
from galley.models.registry import build_program
from scripts import gpu_check


def test_figures_are_read_back_and_a_missed_target_is_reported(tmp_path: Path) -> None:
    figures = [
        {
            "kind": kind,
            "phase": phase,
            "size": size,
            "held": size == 1,
            "share": share,
            "tokens/s": 3.0,
        }
        for kind in ("bf16", "int4")
        for phase, size, share in (("prefill", 1, 71.0), ("decode", 1, 60.0), ("decode", 8, 20.0))
    ]
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps(machine(figures, "A GPU", 4e12, 7e14)))
    machines = read_results(tmp_path)
    [read] = machines.values()
    missed = [
        figure.what for figure in read.figures if any(map(figure.missed, range(len(figure.at))))
    ]
    assert len(missed) == 2
    assert all("decode" in what for what in missed)
    assert any("A GPU" in text for text in pages(machines).values())


def test_a_file_says_which_shape_and_how_many_layers_were_measured() -> None:
    figure = {"kind": "bf16", "size": 1, "held": True, "share": 71.0, "tokens/s": 3.0}
    figures = [{**figure, "phase": phase} for phase in ("prefill", "decode")]
    made = machine(figures, "A GPU", 4e12, 7e14, "qwen3-30b-a3b", 12)
    assert "Qwen3 30B-A3B's shape with 12 of its 48 layers" in made["description"]
    assert {one["command"] for one in made["figures"]} == {
        "python -m scripts.gpu_check --shape qwen3-30b-a3b --layers 12"
    }


def test_what_needs_two_gpus_is_skipped_and_says_so() -> None:
    assert "skipped, because this machine has 1 GPU" in gpu_check.two_gpus(1)
    assert "tested on 2 of 4 GPUs" in gpu_check.two_gpus(4)


def test_mxfp4_needs_experts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_check", "--kinds", "mxfp4"])
    with pytest.raises(SystemExit):
        gpu_check.main()
    assert "--shape gpt-oss-20b" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shape", "weight_dtype"),
    [*(("llama-8b", kind) for kind in ("bf16", "int4", "int8")), ("gpt-oss-20b", "mxfp4")],
)
def test_random_weights_are_those_of_the_shape(shape: str, weight_dtype: str) -> None:
    small = {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 1, "vocab_size": 64}
    config = {**gpu_check.SHAPES[shape].config, **small}
    program = build_program(
        config | ({"num_local_experts": 4} if "num_local_experts" in config else {})
    )
    weights = RandomWeights(program, kinds_of(program, weight_dtype))
    assert any(weights.info(name).kind.name == weight_dtype for name in weights)
    for name in weights:
        assert weights[name].shape == program.shapes[name]
        assert weights[name].kind == weights.info(name).kind
