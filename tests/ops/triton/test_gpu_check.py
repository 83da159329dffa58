"""``make gpu-check`` writes a valid file of benchmarks/results."""

import json
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install 'galley-inference[gpu]'")

from scripts.benchmarks_page import pages, read_results
from scripts.gpu_check import RandomWeights, machine

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


@pytest.mark.parametrize("quantize", ["bf16", "int4", "int8"])
def test_random_weights_are_those_of_the_shape(quantize: str) -> None:
    small = {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 1, "vocab_size": 64}
    program = build_program({**gpu_check.SHAPES["llama-8b"].config, **small})
    weights = RandomWeights(program, quantize)
    for name in weights:
        assert weights[name].shape == program.shapes[name]
        assert weights[name].kind == weights.info(name).kind
