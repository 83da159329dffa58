"""Static scales of int8 inputs: what each observer clips, and a model for which min-max fails."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from galley.calibration.static_inputs import loss_of_inputs, observed
from galley.engine.read_model import read_model
from galley.ops.choice import choose_executor
from galley.quant.observers import OBSERVERS, least_squares, static_int8
from galley.settings.engine import EngineSettings
from tests.checkpoints import make_checkpoint, random_ids

WINDOWS = [random_ids(seed, 48) for seed in range(17)]


@pytest.mark.parametrize("name", OBSERVERS)
def test_ranges(name: str) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, 64)).astype(np.float32)
    largest = float(np.abs(rows).max())
    assert 0.5 * largest < OBSERVERS[name](rows) <= largest
    rows[7, 3] = 100.0
    found = OBSERVERS[name](rows)
    assert found == 100 if name == "min-max" else name == "mse" or found < 2 * largest
    assert OBSERVERS[name](np.zeros((4, 4), np.float32)) == 0


def test_least_squares_finds_no_worse_range_than_the_others_do() -> None:
    rows = np.random.default_rng(1).standard_t(3, (200, 64)).astype(np.float32)
    ranges = {name: observer(rows) for name, observer in OBSERVERS.items()}
    errors = {n: np.square(static_int8(rows, r) - rows).mean() for n, r in ranges.items()}
    assert errors["mse"] <= 1.01 * min(errors.values())
    assert least_squares(rows) < ranges["min-max"]


def test_min_max_ruins_a_model_with_rare_outliers_and_clipping_spares_it(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", "llama", hidden_size=64, head_dim=16)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("gate_proj.weight", "up_proj.weight")):
            tensor[::40] *= 8
        if name.endswith("down_proj.weight"):
            tensor[:, ::40] /= 64
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = EngineSettings(dtype="float32", kv_dtype="float32", threads=1)
    model = read_model(settings, folder)
    _, factory = choose_executor("auto", "cpu")
    ranges = observed(model, factory, WINDOWS[2:], OBSERVERS)
    kl = {n: loss_of_inputs(model, factory, WINDOWS[:2], r).kl for n, r in ranges.items()}
    dynamic = loss_of_inputs(model, factory, WINDOWS[:2], None).kl
    assert kl["min-max"] > 1
    assert kl["entropy"] < kl["min-max"] / 4
    assert kl["percentile"] < kl["min-max"] / 2
    assert dynamic < min(kl.values())
