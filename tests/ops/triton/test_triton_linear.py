"""Products and gathered rows of every kind of matrix, against float64 products of their values."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.triton.device import DEVICE, ERRORS, ON_GPU, TYPES, device, error
from tests.thorough import examples

import torch

from galley.formats.values import as_dense, dequantize
from galley.formats.weights import IntWeight, WeightKind
from galley.ops.triton import matrices
from galley.ops.triton.matrices import Matrix
from galley.ops.triton.packing import fp8_matrix, pack, packed_bytes

KINDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "fp8": {},
    "int8": {"bits": 8},
    "int8 in groups": {"bits": 8, "group": 32},
    "int4": {"bits": 4},
    "int4 in groups": {"bits": 4, "group": 32},
    "int4 with zero points": {"bits": 4, "group": 64, "zeros": True},
    "int4 with minima": {"bits": 4, "group": 32, "minima": True},
    "int4 in groups of no power of two": {"bits": 4, "group": 24},
}


def matrix(
    kind: str,
    outputs: int,
    depth: int,
    dtype: torch.dtype,
    *,
    gated: bool = False,
    biased: bool = False,
) -> tuple[Matrix, torch.Tensor, torch.Tensor]:
    """Return (a random matrix packed in two parts, its values, its bias)."""
    random = np.random.default_rng(outputs * 1000 + depth)
    parts = [outputs // 2, outputs - outputs // 2]
    bias = [random.standard_normal(n).astype(np.float32) for n in parts] if biased else []
    if kind == "fp8":
        values = torch.from_numpy(random.standard_normal((outputs, depth), np.float32))
        made = fp8_matrix(values.to(DEVICE))
        scales = (values.abs().amax(1, keepdim=True) / 448.0).clamp_min(1e-30)
        stood = (values / scales).to(torch.float8_e4m3fn).float() * scales
        return made, stood, torch.zeros(outputs)
    weights: list[Any] = []
    values_of: list[torch.Tensor] = []
    for n in parts:
        if kind == "dense":
            raw = random.standard_normal((n, depth)).astype(np.float32)
            weights.append(as_dense("w", "F16" if dtype == torch.float16 else "F32", raw))
            values_of.append(torch.from_numpy(raw).to(dtype).float())
            continue
        weights.append(integers(random, n, depth, **KINDS[kind]))
        values_of.append(torch.from_numpy(dequantize(weights[-1])))
    biases = [as_dense("b", "F32", b) for b in bias]
    made = pack(
        weights, WeightKind("float32"), dtype, torch.device(DEVICE), bias=biases, gated=gated
    )
    return (
        made,
        torch.cat(values_of),
        torch.from_numpy(np.concatenate([*bias, np.zeros(0, np.float32)])),
    )


def integers(
    random: np.random.Generator, outputs: int, depth: int, *, bits: int, group: int = 0,
    zeros: bool = False, minima: bool = False,
) -> IntWeight:  # fmt: skip
    group = group or depth
    groups = -(-depth // group)
    q: Any = random.integers(0, 16, (outputs, depth)).astype(np.uint8)
    if bits == 8:
        q = random.integers(-127, 128, (outputs, depth)).astype(np.int8)
    scales = (random.random((outputs, groups)) + 0.5).astype(np.float16).astype(np.float32)
    return IntWeight(
        "w",
        bits,
        q,
        group,
        scales,
        random.integers(0, 16, (outputs, groups)).astype(np.uint8) if zeros else None,
        "F16",
        minima=scales - 1 if minima else None,
    )


def product(made: Matrix, x: torch.Tensor, *, gated: bool = False) -> torch.Tensor:
    width = made.outputs // 2 if gated else made.outputs
    out = torch.full((len(x), width), torch.nan, dtype=x.dtype, device=DEVICE)
    made.multiply(device(), x.to(DEVICE), out, gated=gated)
    return out.cpu()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_the_values(kind: str, dtype: torch.dtype) -> None:
    made, values, bias = matrix(kind, 70, 90, dtype, biased=kind != "fp8")
    x = torch.randn(19, 90, generator=torch.Generator().manual_seed(0)).to(dtype)
    wanted = x.double() @ values.double().T + bias.double()
    assert error(product(made, x), wanted) <= ERRORS[dtype]


@settings(max_examples=examples(4))
@given(
    kind=st.sampled_from(sorted(KINDS)),
    rows=st.integers(1, 70),
    outputs=st.integers(2, 140),
    depth=st.integers(1, 300),
)
def test_products_of_any_size(kind: str, rows: int, outputs: int, depth: int) -> None:
    made, values, _ = matrix(kind, outputs, depth, torch.float32)
    x = torch.randn(rows, depth, generator=torch.Generator().manual_seed(rows))
    assert error(product(made, x), x.double() @ values.double().T) <= 1e-5


@pytest.mark.parametrize("kind", ["dense", "int4 in groups", "int8"])
def test_gated_products_are_silu_of_the_first_half_times_the_second(kind: str) -> None:
    made, values, bias = matrix(kind, 72, 64, torch.float32, gated=True, biased=True)
    x = 0.1 * torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    gate, up = (x.double() @ values.double().T + bias.double()).chunk(2, dim=1)
    wanted = torch.nn.functional.silu(gate) * up
    assert error(product(made, x, gated=True), wanted) <= 1e-5


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", ["dense", "fp8", "int8", "int4 with zero points"])
def test_a_row_has_the_same_bits_alone_and_among_any_number(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes sums of columns in stretches, by one program or by several."""
    monkeypatch.setattr(matrices, "_LEAST_STRETCH", 256)
    monkeypatch.setattr(matrices, "APART_ROWS", 3)
    made, values, _ = matrix(kind, 50, 1100, dtype)
    assert made.splits[0] == (1 if kind == "dense" else 3)
    x = torch.randn(21, 1100, generator=torch.Generator().manual_seed(0)).to(dtype)
    together = product(made, x)
    assert error(together, x.double() @ values.double().T) <= ERRORS[dtype]
    for rows in (slice(0, 1), slice(20, 21), slice(7, 9), slice(2, 19)):
        assert torch.equal(product(made, x[rows]), together[rows])


@pytest.mark.parametrize(
    "kind", ["fp8", "int8 in groups", "int4 with zero points", "int4 with minima"]
)
def test_a_matrix_may_be_dequantized_as_a_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = TYPES[-1]
    made, _, _ = matrix(kind, 70, 200, dtype)
    x = torch.randn(5, 200, generator=torch.Generator().manual_seed(0)).to(dtype)
    in_tiles = product(made, x)
    monkeypatch.setattr(matrices, "WHOLE_ROWS", 1)
    whole = product(made, x)
    assert error(whole, in_tiles) <= ERRORS[dtype]
    # The interpreter sums a tile of columns as numpy does, and dense matrices have other tiles.
    assert torch.equal(whole, in_tiles) or not ON_GPU


@pytest.mark.parametrize("kind", KINDS)
def test_gathered_rows_are_the_values(kind: str) -> None:
    made, values, _ = matrix(kind, 70, 90, torch.float32)
    numbers = torch.tensor([3, 69, 0, 3], dtype=torch.int32)
    out = torch.full((4, 90), torch.nan, device=DEVICE)
    made.gather(device(), numbers.to(DEVICE), out)
    assert error(out, values[numbers.long()]) <= 1e-6


def test_kept_bytes_are_what_was_planned() -> None:
    for kind in ("int8", "int4 with zero points", "int4 in groups"):
        made, _, _ = matrix(kind, 70, 192, torch.float32)
        keys = KINDS[kind]
        group = int(keys.get("group", 0))
        planned = WeightKind(f"int{keys['bits']}", group, "F16", zeros=bool(keys.get("zeros")))
        assert packed_bytes(planned, 70, 192, torch.float32) == made.nbytes
