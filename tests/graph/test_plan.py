"""Buffers that live at the same time never overlap, and the arena is small."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from galley.formats.checkpoint import Checkpoint
from galley.graph.plan import Lifetime, least_arena, plan_arena
from galley.models.registry import build_program
from galley.ops.cpu import lower
from galley.ops.packing import Matrices
from tests.checkpoints import VARIANTS
from tests.conftest import CheckpointMaker

lifetime = st.builds(
    lambda size, first, length: Lifetime(size, first, first + length),
    st.integers(0, 40),
    st.integers(0, 20),
    st.integers(0, 8),
)


@given(st.lists(lifetime, max_size=30))
def test_living_buffers_do_not_overlap(lifetimes: list[Lifetime]) -> None:
    plan = plan_arena(lifetimes)
    for step in range(30):
        owner = np.full(plan.size, -1)
        for i, (at, x) in enumerate(zip(plan.offsets, lifetimes, strict=True)):
            if x.first <= step <= x.last:
                assert (owner[at : at + x.size] == -1).all()
                owner[at : at + x.size] = i
    assert least_arena(lifetimes) <= plan.size <= sum(x.size for x in lifetimes)


def test_nothing_needs_no_room() -> None:
    assert plan_arena([]).size == 0


def test_models_are_planned_about_as_tightly_as_liveness_allows(
    checkpoint: CheckpointMaker,
) -> None:
    for variant, kind in [(v, k) for v in VARIANTS for k in ("float32", "int4")]:
        folder: Path = checkpoint(variant)
        opened = Checkpoint.open(folder)
        weights = opened.weights()
        lowered = lower(build_program(opened.config), weights, Matrices(weights, kind))
        lifetimes = lowered.lifetimes()
        assert plan_arena(lifetimes).size <= 1.1 * least_arena(lifetimes), (variant, kind)
