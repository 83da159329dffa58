"""Mixtures of experts: the routing of rows, and the experts' results."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galley.formats.weights import DenseWeight, LoadedWeights
from galley.graph.program import Program
from galley.graph.trace import Buffer, ExpertNames, Tracer, trace
from galley.ops.batch import Batch
from galley.ops.cpu import CpuExecutor
from galley.ops.cpu_plan import planned_step_costs
from galley.ops.executor import Executor, ExecutorOptions, forward
from galley.ops.kinds import plan_kinds
from galley.ops.lowering import held_bytes
from galley.ops.reference import ReferenceExecutor
from galley.types.model_info import ExpertCosts
from tests.native.harness import KINDS, LAYERS, Floats, RoundingExecutor, as_weight, input_rounding
from tests.thorough import examples

HIDDEN, WIDTH, VOCAB = 40, 27, 64
EXPERTS, PER_TOKEN = 6, 3


def described(g: Tracer, *, scaled_inputs: bool = False, **routing: Any) -> Buffer:
    """Describe a layer whose input and router logits are rows of two tables; tests choose both."""
    x = g.embed("x", vocab=VOCAB, width=HIDDEN)
    routes = g.route(g.embed("router", vocab=VOCAB, width=EXPERTS), **routing)
    names = [ExpertNames(*(f"{i}.{part}" for part in ExpertNames._fields)) for i in range(EXPERTS)]
    y = g.select_rows(g.experts(x, routes, names, WIDTH, scaled_inputs=scaled_inputs))
    return g.linear(y, "head", HIDDEN)


def program_of(**routing: Any) -> Program:
    routing = {"per_token": PER_TOKEN, **routing}
    return trace(lambda g: described(g, **routing), max_positions=VOCAB)


def weights_of(program: Program, **given: Floats) -> dict[str, DenseWeight]:
    rng = np.random.default_rng(0)
    values = {
        name: rng.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[-1])
        for name, shape in program.shapes.items()
    }
    values |= {"head": np.eye(HIDDEN, dtype=np.float32), **given}
    return {name: as_weight(value) for name, value in values.items()}


def routes_alone(**routing: Any) -> Program:
    """A layer whose logits are the experts' numbers and weights."""

    def describe(g: Tracer) -> Buffer:
        routes = g.route(g.embed("router", vocab=VOCAB, width=EXPERTS), **routing)
        return g.linear(g.select_rows(routes), "head", routes.width)

    return trace(describe, max_positions=VOCAB)


EXACT = {"x": "float32", "router": "float32", "head": "float32"}
"""Kinds of the matrices that are not experts."""


def options(kind: str = "float32", **changes: Any) -> ExecutorOptions:
    made = {
        "dtype": "float32",
        "kv_dtype": "float32",
        "device": "cpu",
        "threads": 2,
        "kinds": EXACT,
    }
    return ExecutorOptions(**{**made, "weight_dtype": kind, **changes})


def executor_of(
    factory: type[CpuExecutor] | type[ReferenceExecutor],
    program: Program,
    weights: dict[str, DenseWeight],
    made: ExecutorOptions,
) -> Executor:
    kinds = {name: kind for name, kind in made.kinds.items() if name in program.shapes}
    executor = factory(program, LoadedWeights(weights), dataclasses.replace(made, kinds=kinds))
    executor.allocate_kv(8)
    return executor


def outputs(executor: Executor, rows: list[int]) -> Floats:
    """Return the layer's result for these rows of the tables, in one step."""
    at = np.arange(len(rows))
    starts = np.array([0, len(rows)])
    return forward(executor, Batch(np.array(rows), at, starts, (), at)).copy()


def chosen_by_hand(logits: Floats, bias: Floats | None, routing: dict[str, Any]) -> list[float]:
    """Return the routing of one row in double precision, one expert at a time."""
    x = logits.astype(np.float64)
    scores = np.exp(x) / np.exp(x).sum() if routing["scores"] == "softmax" else 1 / (1 + np.exp(-x))
    keys = scores if bias is None else scores + bias
    size = EXPERTS // routing["groups"]
    groups = [list(range(g * size, (g + 1) * size)) for g in range(routing["groups"])]
    best = [sum(sorted(keys[group])[-routing["group_best"] :]) for group in groups]
    kept = sorted(range(len(groups)), key=lambda g: (-best[g], g))[: routing["kept_groups"]]
    left = [n for g in kept for n in groups[g]]
    chosen = sorted(left, key=lambda n: (-keys[n], n))[: routing["per_token"]]
    weights = scores[chosen]
    weights = weights / weights.sum() if routing["normalize"] else weights
    return [*map(float, chosen), *(weights * routing["factor"])]


@settings(max_examples=examples(30))
@given(st.data())
def test_routes_are_those_computed_by_hand(data: st.DataObject) -> None:
    """Logits have few values, so that many are equal; all are above zero, so no sum of sigmoids is zero."""
    groups = data.draw(st.sampled_from([1, 2, 3]))
    kept = data.draw(st.integers(1, groups))
    routing: dict[str, Any] = {
        "scores": data.draw(st.sampled_from(["softmax", "sigmoid"])),
        "normalize": data.draw(st.booleans()),
        "factor": data.draw(st.sampled_from([1.0, 2.5])),
        "groups": groups,
        "kept_groups": kept,
        "group_best": data.draw(st.integers(1, EXPERTS // groups)),
        "per_token": data.draw(st.integers(1, EXPERTS // groups * kept)),
    }
    biases = st.lists(st.sampled_from([0.0, 3.0, -5.0]), min_size=EXPERTS, max_size=EXPERTS)
    # Sums of the same scores with biases in the opposite order would be equal except for rounding.
    sums = kept < groups and routing["group_best"] > 1
    bias = None if sums else data.draw(st.none() | biases)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    logits = rng.choice(np.array([0.25, 0.5, 1, 2, 3], np.float32), (VOCAB, EXPERTS))
    program = routes_alone(**routing, bias=None if bias is None else "bias")
    width = 2 * routing["per_token"]
    given = {"router": logits, "head": np.eye(width, dtype=np.float32)}
    if bias is not None:
        given["bias"] = np.array(bias, np.float32)
    weights = weights_of(program, **given)
    hand = np.array([chosen_by_hand(row, given.get("bias"), routing) for row in logits])
    for factory in (ReferenceExecutor, CpuExecutor):
        executor = executor_of(factory, program, weights, options())
        assert np.allclose(outputs(executor, [*range(VOCAB)]), hand, rtol=1e-5, atol=0), routing


def by_hand(
    weights: dict[str, DenseWeight], rows: list[int], *, scaled_inputs: bool = False
) -> Floats:
    values = {
        name: w.data.view(np.float32).reshape(w.shape).astype(np.float64)
        for name, w in weights.items()
    }
    total = np.zeros((len(rows), HIDDEN))
    for at, row in enumerate(rows):
        routing: dict[str, Any] = {"scores": "softmax", "normalize": True, "factor": 1.0}
        routing |= {"per_token": PER_TOKEN, "groups": 1, "kept_groups": 1, "group_best": 1}
        found = chosen_by_hand(values["router"][row], None, routing)
        for n, weight in zip(found[:PER_TOKEN], found[PER_TOKEN:], strict=True):
            gate, up, down = (values[f"{int(n)}.{part}"] for part in ExpertNames._fields)
            x = values["x"][row]
            if scaled_inputs:
                x, weight = weight * x, 1.0
            inner = gate @ x / (1 + np.exp(-(gate @ x))) * (up @ x)
            total[at] += weight * (down @ inner)
    return total.astype(np.float32)


ROUTERS: dict[str, Floats] = {
    "by chance": np.random.default_rng(5).standard_normal((VOCAB, EXPERTS), dtype=np.float32),
    "to one expert, two others by chance": np.random.default_rng(6)
    .standard_normal((VOCAB, EXPERTS), dtype=np.float32)
    .__add__(np.array([0, 0, 9, 0, 0, 0], np.float32)),
    "three experts get all, the others nothing": np.tile(
        np.array([9, 0, 8, 0, 0, 7], np.float32), (VOCAB, 1)
    ),
}


@pytest.mark.parametrize("scaled_inputs", [False, True])
@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("factory", [ReferenceExecutor, CpuExecutor])
def test_experts_are_summed_as_by_hand(factory: Any, router: str, scaled_inputs: bool) -> None:
    program = program_of(scaled_inputs=scaled_inputs)
    weights = weights_of(program, router=ROUTERS[router])
    executor = executor_of(factory, program, weights, options())
    for rows in ([7], [*range(VOCAB)], [3, 3, 3, 9]):
        expected = by_hand(weights, rows, scaled_inputs=scaled_inputs)
        got = outputs(executor, rows)
        assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(("kind", "activations"), LAYERS)
def test_a_row_has_the_same_bits_alone_and_among_others(kind: str, activations: str) -> None:
    program = program_of()
    weights = weights_of(program, router=ROUTERS["by chance"])
    one, two = (
        executor_of(
            CpuExecutor, program, weights, options(kind, activations=activations, threads=n)
        )
        for n in (1, 2)
    )
    alone = np.concatenate([outputs(one, [row]) for row in range(VOCAB)])
    rng = np.random.default_rng(1)
    for size in (2, 17, 60):
        rows = rng.permutation(VOCAB)[:size].tolist()
        assert np.array_equal(outputs(two, rows), alone[rows])


def rounding_of(
    program: Program, weights: dict[str, DenseWeight], kind: str, activations: str, **kinds: str
) -> Executor:
    made = options(kind, kinds={**EXACT, **kinds})
    if kind == "float32" and not kinds:
        return executor_of(ReferenceExecutor, program, weights, made)
    executor = executor_of(RoundingExecutor, program, weights, made)
    assert isinstance(executor, RoundingExecutor)
    executor.rounding = executor.routing = input_rounding(activations, kind)
    return executor


@pytest.mark.parametrize(("kind", "activations"), LAYERS)
def test_every_kind_agrees_with_torch_on_its_values(kind: str, activations: str) -> None:
    program = program_of()
    weights = weights_of(program, router=ROUTERS["by chance"])
    native = executor_of(CpuExecutor, program, weights, options(kind, activations=activations))
    got = outputs(native, [*range(VOCAB)])
    truth = rounding_of(program, weights, kind, activations)
    expected = outputs(truth, [*range(VOCAB)])
    # The remaining difference is the rounding of inputs that a sum's last bit decides.
    limit = {"float32": 1e-5, "bfloat16": 1e-2, "int8": 2e-2}[activations]
    error = np.abs(got - expected) / np.abs(expected).max()
    assert error.max() <= limit
    assert error.mean() <= limit / 10


def test_each_matrix_of_an_expert_may_have_another_kind() -> None:
    program = program_of()
    weights = weights_of(program, router=ROUTERS["by chance"])
    kinds = {**EXACT, "2.gate": "bf16", "2.up": "int8", "4.down": "float32", "5.up": "f16"}
    made = options("int4", kinds=kinds)
    got = outputs(executor_of(CpuExecutor, program, weights, made), [*range(VOCAB)])
    expected = outputs(executor_of(ReferenceExecutor, program, weights, made), [*range(VOCAB)])
    # Inputs are rounded to int8 here, and not there.
    assert np.abs(got - expected).max() <= 4e-2 * np.abs(expected).max()
    exact = outputs(
        executor_of(
            CpuExecutor, program, weights, dataclasses.replace(made, activations="float32")
        ),
        [*range(VOCAB)],
    )
    assert np.abs(exact - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_of_all_experts_and_a_step_reads_those_of_its_rows(kind: str) -> None:
    program = program_of()
    kinds = plan_kinds(program, kind)
    costs = planned_step_costs(program, kinds, kv_dtype="float32")
    held = held_bytes([program.with_kinds(kinds)])
    one = held_bytes([program_of(per_token=1).with_kinds(kinds)])
    assert held == one  # whatever a row reads
    assert costs.experts.share == PER_TOKEN / EXPERTS
    expert = costs.experts.bytes // EXPERTS
    others = held - costs.experts.bytes
    assert others < costs.weight_bytes + VOCAB * (HIDDEN + EXPERTS) * 4
    assert costs.weights_read(1) == costs.weight_bytes
    assert costs.weights_read(10**6) == costs.weight_bytes + (EXPERTS - PER_TOKEN) * expert
    assert (
        costs.row_operations == 0
    )  # the rows are wanted: what follows their selection counts there
    products = PER_TOKEN * 3 * HIDDEN * WIDTH + HIDDEN * HIDDEN
    assert sum(program.operations()) == 2 * products
    assert ExpertCosts(100, 0.25).further(2) == 19  # 100 * (1 - 0.25 - 0.75 ** 2)
