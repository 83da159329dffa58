"""Where buffers lie in one shared piece of memory: two may share bytes if they never live together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_REPAIRS: Final = 24
"""How often an order is tried again."""


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
    """First fit in one of a few good orders; what sticks out at the end is placed earlier the next time.

    For the models tested that reaches the least size, mostly at the second try.
    """
    orders = (
        lambda i: (-lifetimes[i].size, lifetimes[i].first),
        lambda i: (lifetimes[i].first, -lifetimes[i].size),
        lambda i: (lifetimes[i].first - lifetimes[i].last, -lifetimes[i].size),
    )
    buffers, least = range(len(lifetimes)), least_arena(lifetimes)
    plans = []
    for order in (sorted(buffers, key=key) for key in orders):
        for _ in range(_REPAIRS):
            plan = _first_fit(lifetimes, order)
            if plan.size == least:
                return plan
            plans.append(plan)
            out = [i for i in order if plan.offsets[i] + lifetimes[i].size == plan.size]
            for i in out:
                # Half the way: those placed first take turns otherwise, and the orders repeat.
                order.insert(order.index(i) // 2, order.pop(order.index(i)))
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
    for i in (i for i in order if lifetimes[i].size):
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
