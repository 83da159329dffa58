"""Experts: routing, products and sums, against torch; the same bits alone and together."""

from typing import Any

import numpy as np
import pytest

from tests.ops.triton.device import DEVICE, ERRORS, TYPES, device, error

import torch

from galley.errors import UnsupportedModel
from galley.formats.values import as_dense, dequantize
from galley.formats.weights import LoadedWeights, WeightKind
from galley.graph.program import Program
from galley.graph.trace import ExpertNames, Tracer, trace
from galley.ops.reference_experts import expert_sum, gated, route
from galley.ops.triton.experts import Experts, Route, group_rows
from galley.quant.rtn import quantize_int4, quantize_int8

EXPERTS, HIDDEN, WIDTH = 5, 48, 24
ROUTES: dict[str, dict[str, Any]] = {
    "softmax": {"scores": "softmax", "normalize": True},
    "sigmoid with a factor": {"scores": "sigmoid", "normalize": False, "factor": 2.5, "bias": True},
    "groups": {"groups": 4, "kept_groups": 2, "group_best": 2, "scores": "sigmoid", "bias": True},
    "one of many": {"scores": "sigmoid", "experts": 130, "per_token": 1},
}


@pytest.mark.parametrize("name", ROUTES)
def test_rows_go_to_the_experts_of_the_reference(name: str) -> None:
    attrs: dict[str, Any] = {
        "experts": 12,
        "per_token": 3,
        "scores": "softmax",
        "normalize": False,
        "factor": 1.0,
    }
    attrs |= {"groups": 1, "kept_groups": 1, "group_best": 1, **ROUTES[name]}
    experts = attrs["experts"]
    random = torch.Generator().manual_seed(experts)
    bias = torch.randn(experts, generator=random) if attrs.pop("bias", False) else None
    logits = torch.randn(19, experts, generator=random)
    logits[3, 7] = logits[3, 2] = logits[3].max()  # the first of equal ones
    wanted = route(logits, attrs, bias)
    out = torch.full(wanted.shape, torch.nan, device=DEVICE)
    Route(attrs, None if bias is None else bias.to(DEVICE))(logits.to(DEVICE), out)
    k = attrs["per_token"]
    assert torch.equal(out[:, :k].cpu(), wanted[:, :k])
    assert error(out[:, k:], wanted[:, k:]) <= 1e-6


@pytest.mark.parametrize("choices", [1, 7, 40])
def test_every_choice_is_in_one_tile_of_its_expert(choices: int) -> None:
    numbers = torch.randint(-1, 9, (choices, 1), generator=torch.Generator().manual_seed(choices))
    groups = group_rows(numbers.to(DEVICE, torch.int32), 1, 9, device())
    order = groups.order.cpu()
    found = [(e, order[a:b].tolist()) for e, a, b in groups.tiles.tolist() if e >= 0]
    assert all(0 < len(own) <= groups.rows_in_tile for _, own in found)
    for expert in range(9):
        own = [choice for e, part in found if e == expert for choice in part]
        assert own == (numbers[:, 0] == expert).nonzero()[:, 0].tolist()


class Case:
    """A layer of random experts of one kind, and the values of its matrices."""

    def __init__(self, kind: str, dtype: torch.dtype, **attrs: Any) -> None:
        biased = attrs.pop("biased", False)
        names, biases = (
            [ExpertNames(*(f"{e}.{part}.{of}" for part in ("gate", "up", "down"))) for e in range(EXPERTS)]
            for of in ("weight", "bias")
        )  # fmt: skip

        def describe(g: Tracer) -> Any:
            x = g.embed("x", vocab=8, width=HIDDEN)
            routes = g.route(
                g.linear(x, "router", EXPERTS), per_token=2, scores="softmax", normalize=True
            )
            made = g.experts(x, routes, names, WIDTH, biases=biases if biased else (), **attrs)
            return g.linear(g.select_rows(made), "head", 8)

        program = trace(describe, max_positions=8)
        random = np.random.default_rng(0)
        self.weights: dict[str, Any] = {}
        self.values: dict[str, torch.Tensor] = {}
        for name in (n for op in program.ops for role in op.weights.values() for n in role):
            raw = random.standard_normal(program.shapes[name]).astype(np.float32)
            self.weights[name] = as_dense(name, "F32", raw)
            self.values[name] = torch.from_numpy(raw)
            if kind != "dense" and name[0].isdigit() and name.endswith("weight"):
                made = {"int8": quantize_int8, "int4": quantize_int4}[kind](
                    as_dense(name, "F32", raw)
                )
                self.values[name] = torch.from_numpy(dequantize(made))
                self.weights[name] = made
        self.op = next(op for op in program.ops if op.name == "experts")
        kinds = {n: self.weights[n].kind for n in program.matrices}
        if kind == "dense":
            kinds = dict.fromkeys(program.matrices, WeightKind("float32"))
        self.program: Program = program.with_kinds(kinds)
        self.dtype = dtype
        loaded = LoadedWeights(self.weights)
        self.layer = Experts(self.program, self.op, loaded, dtype, device())

    def run(self, x: torch.Tensor, routes: torch.Tensor) -> torch.Tensor:
        out = torch.full(x.shape, torch.nan, dtype=self.dtype, device=DEVICE)
        self.layer(x.to(DEVICE, self.dtype), routes.to(DEVICE), out)
        return out.cpu()

    def wanted(self, x: torch.Tensor, routes: torch.Tensor) -> torch.Tensor:
        def product(role: str, e: int, rows: torch.Tensor) -> torch.Tensor:
            made = rows @ self.values[self.op.weights[role][e]].double().T
            bias = self.op.weights.get(f"{role}_bias")
            return made if bias is None else made + self.values[bias[e]].double()

        def run(e: int, rows: torch.Tensor) -> torch.Tensor:
            gate, up = (product(role, e, rows.double()) for role in ("gate", "up"))
            return product("down", e, gated(gate, up, self.op.attrs))

        scaled = self.op.attrs["scaled_inputs"]
        return expert_sum(
            x.to(self.dtype).float(), routes, run, width=x.shape[1], scaled_inputs=scaled
        )


def choices(rows: int, experts: int = EXPERTS) -> torch.Tensor:
    """Return routes in which no row uses the last expert."""
    random = torch.Generator().manual_seed(rows)
    chosen = torch.stack([torch.randperm(experts - 1, generator=random)[:2] for _ in range(rows)])
    return torch.cat([chosen.float(), torch.rand(rows, 2, generator=random)], dim=1)


LAYERS: dict[str, dict[str, Any]] = {
    "silu": {},
    "clamped, with biases": {"alpha": 1.7, "limit": 2.0, "biased": True},
    "scaled inputs": {"scaled_inputs": True},
}


@pytest.mark.parametrize("kind", ["dense", "int8", "int4"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_the_sum_of_its_experts(name: str, kind: str) -> None:
    for dtype in TYPES if name == "silu" else TYPES[:1]:
        case = Case(kind, dtype, **LAYERS[name])
        x, routes = torch.randn(19, HIDDEN, generator=torch.Generator().manual_seed(1)), choices(19)
        assert error(case.run(x, routes), case.wanted(x, routes)) <= 2 * ERRORS[dtype]


@pytest.mark.parametrize("kind", ["dense", "int4"])
def test_a_row_has_the_same_bits_alone_and_with_others(kind: str) -> None:
    case = Case(kind, TYPES[-1])
    x, routes = torch.randn(33, HIDDEN, generator=torch.Generator().manual_seed(1)), choices(33)
    together = case.run(x, routes)
    for row in (0, 17, 32):
        assert torch.equal(case.run(x[row : row + 1], routes[row : row + 1])[0], together[row])


def test_experts_of_two_types_are_refused_and_named() -> None:
    case = Case("int8", torch.float32)
    kinds = {**case.program.kinds, "3.up.weight": WeightKind("float32")}
    with pytest.raises(
        UnsupportedModel, match=r"experts of 0.gate.weight have weights of types .*use executor cpu"
    ):
        Experts(
            case.program.with_kinds(kinds),
            case.op,
            LoadedWeights(case.weights),
            torch.float32,
            device(),
        )
