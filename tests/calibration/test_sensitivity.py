"""Mixed precision: each part's loss is measured, and choices respect the limit on bytes or loss."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from galley import SettingsError
from galley.calibration.forward import TeacherForced
from galley.calibration.layerwise import Layerwise
from galley.calibration.matrices import linear_weights
from galley.calibration.measures import Divergence, following
from galley.calibration.rounding import trials_of
from galley.calibration.sensitivity import (
    Choice,
    CorrectedBlock,
    Part,
    assign,
    bytes_without,
    parts_of,
)
from galley.engine.read_model import read_model
from galley.formats.values import to_float32
from galley.formats.weights import DenseWeight
from galley.ops.choice import choose_executor
from galley.quant.grid import Scheme
from galley.settings.engine import EngineSettings
from tests.checkpoints import random_ids
from tests.cli.command import galley
from tests.conftest import CheckpointMaker

SMALL, LARGE = Scheme(4, 16), Scheme(8)


def parts() -> list[Part]:
    random = np.random.default_rng(4)
    return [
        Part(
            (f"{i}.weight",),
            (
                Choice(SMALL, 40, float(loss)),
                Choice(LARGE, 80, float(loss) / 50),
                Choice(None, 160, 0.0),
            ),
        )
        for i, loss in enumerate(random.exponential(0.01, 6))
    ]


def totals(choices: list[Choice]) -> tuple[int, float]:
    return sum(c.bytes for c in choices), sum(c.kl for c in choices)


@pytest.mark.parametrize("most", [240, 300, 400, 520, 960, 2000])
def test_the_loss_within_the_bytes_is_about_the_least_there_is(most: int) -> None:
    size, loss = totals(assign(parts(), most_bytes=most))
    every = [totals(list(c)) for c in itertools.product(*(p.choices for p in parts()))]
    best = min(kl for taken, kl in every if taken <= most)
    assert size <= most
    assert loss <= max(1.3 * best, 1e-9)


@pytest.mark.parametrize("most", [1.0, 0.03, 0.005, 0.0])
def test_the_bytes_within_the_loss_are_about_the_fewest(most: float) -> None:
    size, loss = totals(assign(parts(), most_kl=most))
    every = [totals(list(c)) for c in itertools.product(*(p.choices for p in parts()))]
    assert loss <= most
    assert size <= 1.2 * min(taken for taken, kl in every if kl <= most)


def test_too_few_bytes_are_refused() -> None:
    with pytest.raises(SettingsError, match="the layers need at least"):
        assign(parts(), most_bytes=239)


def test_what_finer_schemes_lose_follows_from_their_errors(checkpoint: CheckpointMaker) -> None:
    """The reference is each scheme measured alone; int8 loses too little to distinguish from rounding."""
    settings = EngineSettings(dtype="float32", kv_dtype="float32", threads=1)
    model = read_model(settings, checkpoint("llama"))
    _, factory = choose_executor("auto", "cpu")
    names = linear_weights(model.program)
    windows = [random_ids(1, 90), random_ids(2, 70)]
    schemes = [Scheme(4, 48), Scheme(4, 16), LARGE]
    together = parts_of(model, factory, windows, names, schemes)
    alone = [parts_of(model, factory, windows, names, [scheme]) for scheme in schemes[:2]]
    for i, part in enumerate(together):
        found = {choice.scheme: choice.kl for choice in part.choices}
        for apart in alone:
            measured = apart[i].choices[0]
            assert 0.6 < found[measured.scheme] / measured.kl < 1.6
        assert 0 < found[part.choices[-2].scheme] < 0.02 * max(found.values())


def test_sensitivity_is_that_of_the_whole_model(checkpoint: CheckpointMaker) -> None:
    folder = checkpoint("llama")
    settings = EngineSettings(dtype="float32", kv_dtype="float32", threads=1)
    model = read_model(settings, folder)
    windows = [random_ids(1, 60), random_ids(2, 40)]
    _, factory = choose_executor("auto", "cpu")
    names = linear_weights(model.program)
    found = parts_of(model, factory, windows, names, [Scheme(8, 32)])
    assert sorted(name for part in found for name in part.names) == sorted(names)
    assert [len(part.names) for part in found] == [3, 1, 2, 1] * 2
    part = next(part for part in found if "gate_proj" in part.names[0])
    kinds = dict.fromkeys(part.names, "int8")
    exact = EngineSettings(dtype="float32", kv_dtype="float32", activations="float32", threads=1)
    divergence, after = Divergence(), following(windows)
    with (
        TeacherForced(exact, folder, longest=60) as base,
        TeacherForced(exact, folder, longest=60, kinds=kinds) as changed,
    ):
        for i, window in enumerate(windows):
            [(_, p)], [(_, q)] = list(base.logits(window)), list(changed.logits(window))
            divergence.add(p, q, after[:60] if i == 0 else after[60:])
    # The engine's own int8 has these groups, but no clipping.
    assert part.choices[0].kl == pytest.approx(divergence.loss().kl, rel=0.4)
    assert part.choices[0].kl > 0
    assert bytes_without(model, names) + sum(p.choices[-1].bytes for p in found) == sum(
        np.prod(model.checkpoint.weights().info(name).shape) * 4
        for name in model.checkpoint.weights()
    )


def test_gptq_is_measured_as_gptq(checkpoint: CheckpointMaker) -> None:
    """It loses less than the nearest steps, and whole rows replace groups that do not divide the depth."""
    model = read_model(EngineSettings(kv_dtype="float32", threads=1), checkpoint("llama"))
    windows = [random_ids(1, 60), random_ids(2, 40)]
    calibration = [random_ids(seed, 64) for seed in range(3, 40)]
    _, factory = choose_executor("auto", "cpu")
    arguments = (
        model,
        factory,
        windows,
        linear_weights(model.program),
        [Scheme(4, 16), Scheme(4, 80)],
    )
    plain = parts_of(*arguments)
    by_gptq = parts_of(*arguments, method="gptq", calibration=calibration)
    assert [p.names for p in plain] == [p.names for p in by_gptq]
    kls = [[part.choices[-2].kl for part in parts] for parts in (plain, by_gptq)]
    assert sum(kls[1]) < 0.9 * sum(kls[0])
    schemes = [[c.scheme.group for c in part.choices if c.scheme] for part in by_gptq]
    assert all(groups in ([0, 16], [80, 16], [0]) for groups in schemes), schemes
    assert by_gptq == parts_of(*arguments, method="gptq", calibration=calibration)  # as before
    assert by_gptq != parts_of(*arguments, method="gptq", calibration=calibration[1:])


def test_later_layers_of_a_block_compensate_the_error_of_one(checkpoint: CheckpointMaker) -> None:
    """Rounded queries change attention's output; adjusting it brings it closer to the original."""
    settings = EngineSettings(dtype="float32", kv_dtype="float32", threads=1)
    model = read_model(settings, checkpoint("llama"))
    _, factory = choose_executor("auto", "cpu")
    windows = [random_ids(seed, 64) for seed in range(40)]

    def run() -> Layerwise:
        return Layerwise(model.program, model.weights, windows, factory, model.options)

    first, second = [b for b in run().kept if run().linears(b)][:2]
    names = {b: run().linears(b)[0].weights["weight"] for b in (first, second)}
    block = CorrectedBlock(model, run(), names)
    assert block.corrected(second, []) == []
    rounded = trials_of(model, names[first], None)(Scheme(4, 16))
    [output] = block.corrected(first, rounded)
    assert [output.name] == [*names[second]]
    changed = run()
    for weight in rounded:
        changed.replace(weight)
    own = model.weights[output.name]
    assert isinstance(own, DenseWeight)
    wanted = block.rows[second] @ to_float32(own).T
    missed = [
        float(np.square(changed.advance(second) @ to_float32(matrix).T - wanted).sum())
        for matrix in (own, output)
    ]
    assert 0 < missed[1] < 0.99 * missed[0]


def test_the_command_keeps_to_the_budget(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    folder, out = checkpoint("llama-mha-tied"), tmp_path / "out"
    made = galley(
        *("quantize", folder, out, "--group", 16, "--tokens", 600, "--context", 48),
        *("--method", "mse", "--budget", "100KB"),
    )
    assert made.returncode == 0, made.stderr
    rows = [row for row in made.stdout.splitlines() if row.startswith("model.layers")]
    assert len(rows) == 8
    assert {row.split()[-2] for row in rows} >= {"int4/16", "int8"}
    assert sum(path.stat().st_size for path in out.glob("*.safetensors")) < 1.1 * 100_000
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert {g["weights"]["num_bits"] for g in config["config_groups"].values()} == {4, 8}
    refused = galley("quantize", folder, tmp_path / "other", "--budget", "1KB", "--tokens", 600)
    assert refused.returncode == 2
    assert "the layers need at least" in refused.stderr
