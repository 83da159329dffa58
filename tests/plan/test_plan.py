"""Sizes against published figures and the engine's own, predictions against their arithmetic."""

import dataclasses
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from galley.cli.main import app
from galley.engine import memory as engine_memory
from galley.engine.loaders import load_engine
from galley.errors import SettingsError
from galley.formats.json_file import read_json
from galley.machine import FOLDER_VARIABLE
from galley.models.registry import build_program
from galley.plan.hardware import TABLE, Machine, choose_machines, read_machines
from galley.plan.predict import GIB, Goal, cheapest, most_users, predict
from galley.plan.sizes import ModelSizes
from galley.plan.steps import Load, Shares
from galley.settings.engine import EngineSettings
from galley.types.model_info import Ledger
from galley.types.weight_dtypes import RUNNABLE
from tests.conftest import CheckpointMaker
from tests.plan.shapes import EXACT, LLAMA_7B, LLAMA_70B, MACHINE, MISTRAL, MIXTRAL, planned


def sizes(config: dict[str, Any], precision: str = "bf16") -> ModelSizes:
    return ModelSizes.of(build_program(config), precision, "bfloat16")


def test_published_figures() -> None:
    """Llama 2's model cards, and vLLM's paper (arXiv:2309.06180) for the cache."""
    seven, seventy = sizes(LLAMA_7B), sizes(LLAMA_70B)
    assert seven.parameters == 6_738_415_616
    assert seventy.parameters == 68_976_648_192
    assert seven.kv_bytes(2048) == 2**30
    assert seven.kv_per_token == 512 * 1024
    assert seventy.kv_per_token == 320 * 1024
    assert seven.weights == pytest.approx(2 * seven.parameters, rel=0.01)
    assert sizes(LLAMA_7B, "int8").weights == pytest.approx(seven.parameters, rel=0.03)
    # The embedding is read by the row, so a token costs two operations for every other weight.
    embedding = 32000 * 4096
    operations = seven.row_operations + seven.logit_operations
    assert operations == pytest.approx(2 * (seven.parameters - embedding), rel=0.001)


def test_windows_bound_the_cache_and_attention() -> None:
    model = sizes(MISTRAL)
    assert model.kv_bytes(1024) == model.kv_bytes(4096)
    assert model.kv_bytes(512) == model.kv_bytes(1024) / 2


@given(st.integers(0, 3000), st.integers(1, 2000))
def test_attention_is_the_sum_over_its_rows(first: int, rows: int) -> None:
    model = sizes(MISTRAL)
    [(window, size)] = model.attention.items()
    total = size * sum(min(position, window) for position in range(first, first + rows))
    # A row attends to its own token, too: the closed form is off by half a token.
    assert model.attention_operations(first, rows) == pytest.approx(total, abs=size * rows)


@pytest.mark.parametrize("precision", RUNNABLE)
def test_the_engine_says_the_same(checkpoint: CheckpointMaker, precision: Any) -> None:
    folder = checkpoint("llama")
    settings = EngineSettings(weight_dtype=precision, kv_dtype="bfloat16", kv_cache_tokens=64)
    info = load_engine(settings, folder).info
    costs, ledger = info.require_program().costs, info.ledger
    assert ledger is not None
    planned = ModelSizes.of(build_program(read_json(folder / "config.json")), precision, "bfloat16")
    assert planned.step_weights == costs.weight_bytes
    assert planned.kv_per_token == costs.kv_bytes_per_token
    assert planned.row_operations == costs.row_operations
    assert planned.logit_operations == costs.logit_operations
    assert planned.parameters == ledger.parameters
    assert planned.weights == ledger.weights
    assert planned.kv_per_token == ledger.kv_per_token


def ledger_of(settings: EngineSettings, folder: Path, **changes: Any) -> Ledger:
    ledger = load_engine(dataclasses.replace(settings, **changes), folder).info.ledger
    assert ledger is not None
    return ledger


@pytest.mark.parametrize(
    ("variant", "precision"), [("qwen3-moe", "int4"), ("mixtral", "float32"), ("mixtral", "int8")]
)
def test_the_engine_says_the_same_of_experts_on_disk(
    checkpoint: CheckpointMaker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    precision: Any,
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    folder = checkpoint(variant)
    settings = EngineSettings(
        weight_dtype=precision, kv_dtype="bfloat16", kv_cache_tokens=512, threads=1, experts="disk"
    )
    program = build_program(read_json(folder / "config.json"))
    planned = ModelSizes.of(program, precision, "bfloat16", experts="disk")
    all_in_memory = ModelSizes.of(program, precision, "bfloat16")
    assert planned.weights + planned.on_disk.bytes == all_in_memory.weights
    whole = ledger_of(settings, folder)
    # Room for the experts of one and a half layers, and as much for the KV cache.
    half = planned.on_disk.least_bytes * 3 // 2
    assert planned.on_disk.least_bytes < half < planned.on_disk.bytes
    room = whole.total - whole.experts + 2 * half
    monkeypatch.setattr(engine_memory, "available_memory", lambda: room)
    for limit in (None, half + 1):
        ledger = ledger_of(settings, folder, expert_cache_bytes=limit)
        assert planned.weights == ledger.weights
        assert planned.on_disk.bytes == ledger.experts_on_disk
        assert planned.on_disk.token == ledger.experts_of_token
        assert planned.least_cache == ledger.kv
        machine = Machine(
            name="m",
            what="",
            kind="cpu",
            memory=room / GIB,
            bandwidth=1,
            tflops={"float32": 1, "int8": 1},
        )
        load = Load(prompt=8, output=8, concurrency=1, expert_cache_bytes=limit)
        found = predict(planned, machine, load, EXACT)
        assert found is not None
        fixed = ledger.buffers + ledger.reserve - found.memory.activations
        found = predict(planned, machine, load, dataclasses.replace(EXACT, reserve_bytes=fixed))
        assert found is not None
        assert found.memory.experts == ledger.experts < whole.experts
        assert found.memory.total - found.memory.kv == ledger.total - ledger.kv


def test_a_single_request_reads_all_weights_for_each_token() -> None:
    model = sizes(LLAMA_7B)
    found = predict(model, MACHINE, Load(prompt=16, output=1, concurrency=1), EXACT)
    assert found is not None
    assert found.bound == "bandwidth"
    assert found.step == pytest.approx((model.step_weights + model.kv_bytes(16)) / 2e12)
    assert found.cost is not None
    assert found.cost == pytest.approx(2.0 / 3600 / found.tokens_per_second * 1e6)


@pytest.mark.parametrize(
    ("load", "bound"),
    [
        (Load(prompt=16, output=256, concurrency=1), "bandwidth"),
        (Load(prompt=2048, output=1, concurrency=1), "arithmetic"),
        # A decode step alone is limited by its bytes, but most of the time is spent on prompts.
        (Load(prompt=3000, output=16, concurrency=8), "arithmetic"),
    ],
)
def test_the_bound_is_what_most_of_the_time_goes_to(load: Load, bound: str) -> None:
    found = predict(sizes(LLAMA_7B), MACHINE, load)
    assert found is not None
    assert found.bound == bound


def test_several_accelerators_divide_the_work_and_pay_for_the_exchange() -> None:
    model, load = sizes(LLAMA_70B), Load(concurrency=4)
    [four] = choose_machines(read_machines(), ["h100"], 4)
    [one] = choose_machines(read_machines(), ["h100"])
    found, single = predict(model, four, load), predict(model, one, load)
    assert found is not None
    assert single is not None
    assert found.memory.fits
    assert not single.memory.fits
    assert four.price == pytest.approx(4 * (one.price or 0))
    assert single.step / 4 < found.step < single.step / 2
    slow = msgspec.structs.replace(four, link=1.0)
    crawls = predict(model, slow, Load(prompt=2048, output=1, concurrency=1))
    assert crawls is not None
    assert crawls.bound == "link"


def test_fp8_is_for_gpus() -> None:
    machines = {machine.name: machine for machine in read_machines()}
    found = predict(sizes(LLAMA_7B, "fp8"), machines["H100"], Load())
    bf16 = predict(sizes(LLAMA_7B), machines["H100"], Load())
    assert found is not None
    assert bf16 is not None
    assert found.memory.weights < 0.6 * bf16.memory.weights
    assert found.prefill < 0.6 * bf16.prefill
    assert predict(sizes(LLAMA_7B, "fp8"), machines["c7a.4xlarge"], Load()) is None
    assert predict(sizes(LLAMA_7B, "fp8"), machines["A100"], Load()) is not None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--machine", "H1000"), "'H1000' is not in the table of machines: c7i.4xlarge, "),
        (("--machine", "c7a.4xlarge", "--gpus", "2"), "--gpus 2: c7a.4xlarge is a CPU"),
        (("--machine", "TPU v5e", "--gpus", "2"), "TPU v5e has no link"),
        (("--measure", "--precision", "fp8"), "no fp8 weights"),
        (("--measure", "--machine", "L4"), "leave out --machine and --gpus"),
    ],
)
def test_a_machine_that_cannot_be_planned_is_named(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    result = planned(tmp_path, *arguments)
    assert isinstance(result.exception, SettingsError)
    assert says in str(result.exception)


def test_the_best_buy_is_a_machine_that_galley_runs_on(tmp_path: Path) -> None:
    """A cheaper TPU is reported as a machine without an executor."""
    table = tmp_path / "machines.yaml"
    row = "what: w, memory: 500, bandwidth: 900, tflops: {bfloat16: 200, int8: 400}"
    table.write_text(
        f"- {{name: cheap, kind: tpu, price: 1, {row}}}\n- {{name: dear, kind: cpu, price: 2, {row}}}\n"
    )
    done = planned(tmp_path, "--hardware", str(table), "--json", str(tmp_path / "plan.json"))
    assert "The cheapest machine that meets the goal: dear with" in done.output
    assert "cheap with int4 weights" in done.output
    assert "no executor for it yet" in done.output
    read = json.loads((tmp_path / "plan.json").read_text())["predictions"]
    assert {p["machine"]["name"]: p["executor"] for p in read} == {"cheap": None, "dear": "cpu"}


def test_the_best_buy_is_no_machine_of_the_reference_executor(tmp_path: Path) -> None:
    """The prediction for an older GPU is of kernels that Galley does not have for it."""
    table = tmp_path / "machines.yaml"
    row = "what: w, memory: 500, bandwidth: 900, tflops: {bfloat16: 200, int8: 400}"
    table.write_text(
        f"- {{name: old, kind: gpu, price: 1, capability: 75, {row}}}\n"
        f"- {{name: dear, kind: cpu, price: 2, {row}}}\n"
    )
    done = planned(tmp_path, "--hardware", str(table))
    assert "The cheapest machine that meets the goal: dear with" in done.output
    assert "old with int4 weights" in done.output
    assert "only the slow reference executor for it yet" in done.output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: " + "[" * 3000 + "]" * 3000, "nests lists or mappings too deeply"),
        ("- {name: x, price: 2001-99-99}", "month must be in 1..12"),
    ],
)
def test_a_table_that_is_none_is_named(tmp_path: Path, text: str, says: str) -> None:
    table = tmp_path / "machines.yaml"
    table.write_text(text)
    result = planned(tmp_path, "--hardware", str(table))
    assert isinstance(result.exception, SettingsError)
    assert f"hardware table {table}" in str(result.exception)
    assert says in str(result.exception)


def test_gpus_have_the_executor_that_runs_the_model() -> None:
    machines = {machine.name: machine for machine in read_machines()}
    runs = {name: one.executor(gpu=True) for name, one in machines.items() if one.kind == "gpu"}
    assert {name for name, runs_on in runs.items() if runs_on == "reference"} == {"T4", "MI300X"}
    assert machines["H100"].executor(gpu=False) == "reference"
    assert machines["H100"].times(2).executor(gpu=True) is None


def test_the_middle_of_two_calibrations() -> None:
    one = Shares(bandwidth=0.2, arithmetic=((1, 0.1), (8, 0.5)), step_seconds=0.002)
    two = Shares(bandwidth=0.4, arithmetic=((1, 0.3), (8, 0.7)), step_seconds=0.004)
    one, two = replace(one, exchange_seconds=2e-5), replace(two, exchange_seconds=4e-5)
    middle = one.between(two)
    assert middle.bandwidth == pytest.approx(0.3)
    assert middle.arithmetic_of(1) == pytest.approx(0.2)
    assert middle.arithmetic_of(8) == pytest.approx(0.6)
    assert middle.step_seconds == pytest.approx(0.003)
    assert middle.exchange_seconds == pytest.approx(3e-5)


def test_shares_lie_on_the_line_between_two_measured_ones() -> None:
    shares = Shares(arithmetic=((4, 0.2), (16, 0.4), (64, 0.3)))
    assert [shares.arithmetic_of(rows) for rows in (1, 4, 16, 64, 500)] == [0.2, 0.2, 0.4, 0.3, 0.3]
    assert shares.arithmetic_of(8) == pytest.approx(0.3)
    assert shares.arithmetic_of(32) == pytest.approx(0.35)


def test_a_prompt_shares_its_steps_with_other_sequences() -> None:
    model = sizes(LLAMA_7B)
    load = Load(prompt=600, output=2, concurrency=101, batch_tokens=500)
    found = predict(model, MACHINE, load, EXACT)
    assert found is not None
    # Two steps, of 400 and 200 tokens plus the 100 that others decode, each at the context of 601.
    operations = 800 * model.row_operations + 201 * model.logit_operations
    moved = model.kv_bytes(400) + model.kv_bytes(600) + 200 * model.kv_bytes(601)
    assert found.joined == pytest.approx(operations / 300e12 + moved / 2e12)
    assert found.ttft >= found.joined > found.prefill


def test_a_long_prompt_computes() -> None:
    model = sizes(LLAMA_7B)
    load = Load(prompt=2048, output=1, concurrency=1, batch_tokens=2048)
    found = predict(model, MACHINE, load, EXACT)
    assert found is not None
    attention = model.attention_operations(0, 2048)
    operations = 2048 * model.row_operations + model.logit_operations + attention
    assert found.prefill == pytest.approx(operations / 300e12)


def test_a_machine_without_the_type_is_left_out() -> None:
    tpu = Machine(name="t", what="", kind="tpu", memory=8, bandwidth=1, tflops={"int8": 1})
    assert predict(sizes(LLAMA_7B), tpu, Load()) is None
    assert predict(sizes(LLAMA_7B, "int8"), tpu, Load()) is not None


@pytest.mark.parametrize("goal", [Goal(), Goal(ttft=1.0), Goal(tpot=0.02), Goal(ttft=0.05)])
def test_one_user_more_would_miss_the_goal(goal: Goal) -> None:
    model, load = sizes(LLAMA_7B, "int8"), Load(prompt=1000, output=200)
    most = most_users(model, MACHINE, load, goal)
    assert most > 0
    for users, met in ((most, True), (most + 1, False)):
        load = Load(prompt=1000, output=200, concurrency=users)
        found = predict(model, MACHINE, load)
        assert found is not None
        assert (goal.missed(found) is None) is met


def test_the_cheapest_meets_the_goal_and_no_cheaper_one_does() -> None:
    load, goal = Load(prompt=1000, output=200, concurrency=4), Goal(ttft=1.0, tpot=0.05)
    predictions = [predict(sizes(LLAMA_7B, "int8"), m, load) for m in read_machines()]
    found = [p for p in predictions if p is not None]
    best = cheapest(found, goal)
    assert best is not None
    assert goal.missed(best) is None
    assert best.machine.price is not None
    for other in found:
        if (other.machine.price or math.inf) < best.machine.price:
            assert goal.missed(other)


def test_the_table_is_whole() -> None:
    machines = read_machines()
    assert all(m.sources and m.price and m.tflops for m in machines)
    assert {"T4", "L4", "A10", "RTX 4090", "A100", "H100", "H200", "MI300X"} <= {
        m.name for m in machines
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "no rows"),
        ("- {name: a", "expected"),
        ("- {name: a, what: b, kind: car, memory: 1, bandwidth: 1, tflops: {}}", "kind"),
        ("- {name: a, what: b, kind: cpu, memory: 0, bandwidth: 1, tflops: {}}", "memory"),
        ("- {name: a, what: b, kind: cpu, memory: 1, bandwidth: 1, tflops: {}, x: 1}", "x"),
        (TABLE.read_text() + TABLE.read_text(), "duplicate name"),
    ],
)
def test_a_wrong_table_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "machines.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=says) as error:
        read_machines(path)
    assert str(path) in str(error.value)


def test_the_command_needs_no_weights(tmp_path: Path) -> None:
    config, page = tmp_path / "config.json", tmp_path / "plan.json"
    config.write_text(json.dumps(LLAMA_70B))
    command = ["plan", str(config), "--ttft", "2", "--tpot", "0.05", "--json", str(page)]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert "The cheapest machine that meets the goal: " in result.output
    assert "needs " in result.output
    predictions = json.loads(page.read_text())["predictions"]
    assert len(predictions) == 3 * len(read_machines())
    h100 = next(p for p in predictions if p["machine"]["name"] == "H100")
    assert h100["missed"].startswith("needs ")
    assert not h100["fits"]


def test_more_tokens_than_the_context_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA_7B))
    result = CliRunner().invoke(app, ["plan", str(config), "--prompt", "5000"])
    assert isinstance(result.exception, SettingsError)
    assert "4096" in str(result.exception)


def test_the_command_reports_experts_on_disk(tmp_path: Path) -> None:
    page = tmp_path / "plan.json"
    cache = 6 * GIB
    on_disk = ("--experts", "disk", "--precision", "int4", "--json", str(page))
    model = ModelSizes.of(build_program(MIXTRAL), "int4", "bfloat16", experts="disk").on_disk
    assert model.experts == 8 * 32
    assert model.token == model.bytes / 4
    result = planned(tmp_path, *on_disk, "--expert-cache-bytes", str(cache))
    assert result.exit_code == 0, result.output
    assert f"{model.token / 1e9:.3g} s at 1 GB/s" in result.output
    held = cache // model.slot
    assert f"{held} ({held / 256:.0%})" in result.output
    predictions = json.loads(page.read_text())["predictions"]
    assert {p["machine"]["kind"] for p in predictions} == {"cpu"}
    assert {p["memory"]["experts"] for p in predictions} == {held * model.slot}
    # By default half of what is left, so that as much remains for the KV cache.
    planned(tmp_path, *on_disk)
    for p in json.loads(page.read_text())["predictions"]:
        memory = p["memory"]
        fixed = memory["available"] - sum(memory[k] for k in ("weights", "activations", "reserve"))
        assert p["fits"]
        wanted = min(fixed / 2, model.bytes)
        assert memory["experts"] == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize(
    ("config", "arguments", "says"),
    [
        (LLAMA_7B, ("--experts", "disk"), "the model has no experts"),
        (MIXTRAL, ("--expert-cache-bytes", "9"), "experts is memory"),
        (MIXTRAL, ("--experts", "disk", "--measure"), "leave out --experts disk"),
        (
            MIXTRAL,
            ("--experts", "disk", "--expert-cache-bytes", "9"),
            "with bf16 weights: .* least",
        ),
    ],
)
def test_experts_that_cannot_be_so_are_refused(
    tmp_path: Path, config: dict[str, Any], arguments: tuple[str, ...], says: str
) -> None:
    result = planned(tmp_path, *arguments, config=config)
    assert isinstance(result.exception, SettingsError)
    assert re.search(says, str(result.exception))


def test_a_table_without_cpus_has_no_experts_on_disk(tmp_path: Path) -> None:
    table = tmp_path / "machines.yaml"
    table.write_text("[{name: a, what: b, kind: gpu, memory: 1, bandwidth: 1, tflops: {int8: 1}}]")
    result = planned(tmp_path, "--experts", "disk", "--hardware", str(table))
    assert isinstance(result.exception, SettingsError)
    assert "no machine of kind cpu" in str(result.exception)
