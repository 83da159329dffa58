"""Where buffers lie in one shared piece of memory: two may share bytes if they never live together."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of ``size`` bytes that is written in step ``first`` and last read in step ``last``."""

    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Plan:
    """``offsets[i]`` is where buffer i begins; ``size`` is that of the whole arena."""

    offsets: tuple[int, ...]
    size: int


def plan_arena(lifetimes: Sequence[Lifetime]) -> Plan:
    """The smallest arena that first fit finds when buffers are placed in one of a few good orders."""
    orders = (
        lambda i: (-lifetimes[i].size, lifetimes[i].first),
        lambda i: (lifetimes[i].first, -lifetimes[i].size),
        lambda i: (lifetimes[i].first - lifetimes[i].last, -lifetimes[i].size),
    )
    plans = [_first_fit(lifetimes, sorted(range(len(lifetimes)), key=order)) for order in orders]
    return min(plans, key=lambda plan: plan.size)


def least_arena(lifetimes: Sequence[Lifetime]) -> int:
    """No plan can be smaller: the most bytes that live at the same time."""
    steps = {lifetime.first for lifetime in lifetimes}
    return max(
        (sum(x.size for x in lifetimes if x.first <= step <= x.last) for step in steps), default=0
    )


def _first_fit(lifetimes: Sequence[Lifetime], order: Sequence[int]) -> Plan:
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for i in order:
        mine = lifetimes[i]
        taken = sorted(
            (offsets[j], offsets[j] + lifetimes[j].size)
            for j in placed
            if lifetimes[j].first <= mine.last and mine.first <= lifetimes[j].last
        )
        at = 0
        for begin, end in taken:
            if at + mine.size <= begin:
                break
            at = max(at, end)
        offsets[i] = at
        placed.append(i)
    size = max((at + x.size for at, x in zip(offsets, lifetimes, strict=True)), default=0)
    return Plan(tuple(offsets), size)
