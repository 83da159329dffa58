"""The kernels without products, against torch: norms, elementwise ops, rotation and writing of keys."""

from typing import Any

import pytest

from tests.ops.triton.device import DEVICE, ERRORS, TYPES, error

import torch
import triton

from galley.graph.program import Op
from galley.ops.reference_elementwise import ELEMENTWISE
from galley.ops.triton.kernels.elementwise import elementwise_kernel
from galley.ops.triton.kernels.norm import norm_kernel
from galley.ops.triton.kernels.rope import rope_kernel

ATTRS: dict[str, dict[str, float]] = {"scale": {"factor": 0.7}, "soft_cap": {"cap": 3.0}}
OPS = sorted(ELEMENTWISE.keys() - {"columns", "head_columns"})


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", OPS)
def test_elementwise_ops_are_torch_s(name: str) -> None:
    attrs: dict[str, Any] = ATTRS.get(name, {})
    for dtype in TYPES:
        a = (3 * random(19, 70)).to(dtype)
        b = random(19, 1 if name == "sigmoid_scale" else 70, seed=1).to(dtype)
        inputs = [a, b] if name in ("add", "sigmoid_scale") or name.endswith("_mul") else [a]
        op = Op(name, tuple(range(len(inputs))), (2,), (70,), {}, attrs)
        wanted = ELEMENTWISE[name](op, *(x.float() for x in inputs))
        a, b = a.to(DEVICE), b.to(DEVICE)
        out = torch.full((19, 70), torch.nan, dtype=dtype, device=DEVICE)
        first = next(iter(attrs.values()), 1.0)
        elementwise_kernel[(triton.cdiv(19, 4), 2)](
            a,
            b,
            a,
            out,
            19,
            a.stride(0),
            b.stride(0),
            70,
            70,
            first,
            1.0,
            OP=name,
            ROWS=4,
            BLOCK=64,
        )
        assert error(out, wanted) <= ERRORS[dtype]


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize(("width", "groups"), [(70, 1), (20, 5)])
def test_norms_of_sums(width: int, groups: int, mean: bool) -> None:
    for dtype in TYPES:
        x, y = (random(7, width * groups, seed=seed).to(dtype) for seed in (0, 1))
        weight, bias = random(width * groups, seed=2), random(width * groups, seed=3)
        if not mean:
            weight, bias = weight[:width], bias[:width]
        total = (x + y).float().view(7, groups, width)
        wide, deep = (part.view(-1, width) for part in (weight, bias))
        if mean:
            wanted = torch.nn.functional.layer_norm(total, (width,), eps=1e-5) * wide + deep
        else:
            wanted = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-5) * wide + deep
        out, kept = (torch.full((7, width * groups), torch.nan, dtype=dtype) for _ in range(2))
        out, kept = out.to(DEVICE), kept.to(DEVICE)
        strides = (width * groups,) * 4
        norm_kernel[(4, triton.cdiv(groups, 2))](
            x.to(DEVICE), y.to(DEVICE), kept, weight.to(DEVICE), bias.to(DEVICE), out, 7, *strides, groups,
            1e-5, WIDTH=width, BLOCK=triton.next_power_of_2(width), ROWS=2, GROUPS=2, ADD=True, MEAN=mean,
            WEIGHT=True, BIAS=True, APART=mean,
        )  # fmt: skip
        assert torch.equal(kept.cpu(), x + y)
        assert error(out, wanted.flatten(1)) <= ERRORS[dtype]


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("adjacent", [False, True])
def test_keys_are_rotated_and_written_to_the_tables_blocks(adjacent: bool, int8: bool) -> None:
    """Two rows of one sequence, one padding row, and one of another sequence."""
    heads, kv_heads, dim, pairs = 3, 1, 20, 8
    q, k, v = random(4, heads * dim), random(4, dim, seed=1), random(4, dim, seed=2)
    angle = torch.outer(torch.tensor([15.0, 16.0, 0.0, 3.0]), 0.3 ** torch.arange(pairs))
    keys, values = (
        torch.zeros(
            6, kv_heads, 16, dim, dtype=torch.int8 if int8 else torch.float32, device=DEVICE
        )
        for _ in range(2)
    )
    scales = [torch.zeros(6, kv_heads, 16, device=DEVICE) for _ in range(2)]
    turned = torch.zeros(4, heads * dim, device=DEVICE)
    numbers = [
        torch.tensor(part, dtype=torch.int32, device=DEVICE)
        for part in ([0, 0, -1, 1], [15, 16, 0, 3], [[4, 2], [5, 0]])
    ]
    rope_kernel[(2, 2 + 1 + 1)](
        q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), turned, angle.cos().to(DEVICE), angle.sin().to(DEVICE),
        keys, values, *scales, keys, *numbers, 4, heads * dim, dim, dim, heads * dim, 2, heads, kv_heads,
        KEY=dim, VALUE=dim, BLOCK_D=32, BLOCK_V=32, PAIRS=pairs, ADJACENT=adjacent, QUERIES=True, KEEP=True,
        HEADS=2, ROWS=2, BLOCK_TOKENS=16, BITS=8 if int8 else 0, CUT=0, KEY_STRIDE=dim,
    )  # fmt: skip
    got_keys, got_values = keys.cpu().float(), values.cpu().float()
    if int8:
        got_keys, got_values = (
            part * scale.cpu()[..., None]
            for part, scale in zip((got_keys, got_values), scales, strict=True)
        )
    for row, block, slot in ((0, 4, 15), (1, 2, 0), (3, 5, 3)):
        wanted = _turned(k[row], angle[row], adjacent)
        assert error(got_keys[block, 0, slot], wanted) <= (1e-2 if int8 else 1e-6)
        assert error(got_values[block, 0, slot], v[row]) <= (1e-2 if int8 else 1e-6)
        whole = [_turned(part, angle[row], adjacent) for part in q[row].view(heads, dim)]
        assert error(turned[row], torch.cat(whole)) <= 1e-6
    assert got_keys.abs().sum(dim=(1, 3)).count_nonzero() == 3
    assert not turned[2].any()


def _turned(x: torch.Tensor, angle: torch.Tensor, adjacent: bool) -> torch.Tensor:
    pairs = len(angle)
    shape, members = ((pairs, 2), 1) if adjacent else ((2, pairs), 0)
    a, b = x[: 2 * pairs].view(shape).unbind(members)
    cos, sin = angle.cos(), angle.sin()
    turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=members).flatten()
    return torch.cat((turned, x[2 * pairs :]))
