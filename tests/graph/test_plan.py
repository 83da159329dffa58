"""Buffers that live at the same time never overlap, and the arena is small."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galley.formats.checkpoint import Checkpoint
from galley.graph.passes import PASSES, run_passes
from galley.graph.plan import Lifetime, least_arena, plan_arena
from galley.models.registry import build_program
from galley.ops.lowering import lower
from galley.settings.engine import Activations, WeightDType
from tests.checkpoints import VARIANTS
from tests.conftest import CheckpointMaker
from tests.native.harness import LAYERS, quantized

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


@pytest.mark.parametrize(("kind", "activations"), LAYERS)
@pytest.mark.parametrize("disabled", [(), tuple(PASSES)], ids=["passes", "plain"])
def test_models_are_planned_as_tightly_as_liveness_allows(
    disabled: tuple[str, ...],
    kind: WeightDType,
    activations: Activations,
    checkpoint: CheckpointMaker,
) -> None:
    for variant in VARIANTS:
        opened = Checkpoint.open(checkpoint(variant))
        program = run_passes(quantized(build_program(opened.config), kind, activations), disabled)
        lifetimes = lower(program).lifetimes()
        assert plan_arena(lifetimes).size == least_arena(lifetimes), variant
