"""The answers for each machine and router, and the cheapest."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from galley.plan.cluster.answer import MOST_REPLICAS, Target, fewest
from galley.plan.cluster.engine import Engine
from galley.plan.cluster.scalers import Bounds
from galley.plan.cluster.simulate import Loss, Outcome, Scaling, simulate
from galley.plan.cluster.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Query:
    """The question that a plan answers.

    Attributes:
        target: the goal.
        replicas: how many; None: the fewest that meet the goal.
        lose: replicas that are lost once half of the requests have been sent.
        bounds: of the autoscalers; there are none without.
    """

    target: Target
    replicas: int | None = None
    lose: int = 0
    bounds: Bounds | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a machine and a router.

    Attributes:
        machine, router, scaler: which; ``scaler`` is "" without an autoscaler.
        chosen: with the wanted count, or the fewest that meet the goal; None: none do.
        without_loss: as ``chosen``, without the loss; None if nothing was to be lost.
        tried: all that was simulated with the loss, by the count of replicas.
    """

    machine: str
    router: str
    scaler: str
    chosen: Outcome | None
    without_loss: Outcome | None
    tried: list[Outcome]


def answer(engine: Engine, router: str, traffic: Traffic, query: Query, scaler: str = "") -> Answer:
    """Simulate a machine with a router and, unless it is "", with an autoscaler of the query's bounds."""
    loss = Loss(query.lose, (len(traffic) + 1) // 2) if query.lose else None
    tried: dict[int, Outcome] = {}
    scaling = Scaling(scaler, query.bounds) if scaler and query.bounds is not None else None

    def outcome_of(replicas: int) -> Outcome:
        tried[replicas] = simulate(engine, replicas, router, traffic, loss, scaling)
        return tried[replicas]

    if scaling is not None:
        chosen: Outcome | None = outcome_of(scaling.bounds.least)
    elif query.replicas is not None:
        chosen = outcome_of(query.replicas)
    else:
        chosen = fewest(outcome_of, query.target, query.lose + 1)
    calm = None
    if chosen is not None and loss is not None and scaling is None:
        calm = simulate(engine, chosen.replicas, router, traffic)
    return Answer(
        machine=engine.machine.name,
        router=router,
        scaler=scaler,
        chosen=chosen,
        without_loss=calm,
        tried=[tried[count] for count in sorted(tried)],
    )


def sentences(answers: Sequence[Answer], query: Query) -> Iterator[str]:
    """Yield the answer in words: what is the cheapest that meets the goal, and what does not meet it."""
    if query.bounds is not None:
        yield from _scaled(answers, query)
        return
    if query.replicas is not None:
        return
    for one in answers:
        if one.chosen is None:
            missed = query.target.missed(one.tried[-1])
            yield f"{one.machine}, {one.router}: not met by {MOST_REPLICAS} replicas: {missed}"
    found = [one.chosen for one in answers if one.chosen is not None]
    if not found:
        return
    best = min(found, key=_cost)
    price = best.price_per_hour
    cost = "" if price is None else f", ${price:.2f} an hour"
    kept = f", also with {query.lose} lost" if query.lose else ""
    noun = "replica" if best.replicas == 1 else "replicas"
    yield (
        f"The goal needs {best.replicas} {noun} on {best.machine} with router {best.router}{cost}{kept}"
    )


def _scaled(answers: Sequence[Answer], query: Query) -> Iterator[str]:
    """Yield what the autoscalers do, and which is the cheapest that meets the goal."""
    found = [one.chosen for one in answers if one.chosen is not None]
    met = [outcome for outcome in found if query.target.missed(outcome) is None]
    for outcome in found:
        missed = query.target.missed(outcome) if query.target.is_set else None
        verdict = f"; {missed}" if missed else ""
        changes = len(outcome.timeline) - 1
        yield (
            f"{outcome.machine}, router {outcome.router}, scaler {outcome.scaler}: "
            f"{outcome.mean_replicas:.1f} replicas on average, {outcome.replicas} at most, "
            f"{changes} {'change' if changes == 1 else 'changes'}{verdict}"
        )
    if query.target.is_set and met:
        best = min(met, key=lambda one: (one.mean_replicas, one.replicas))
        yield (
            f"The goal is met with the fewest replicas by scaler {best.scaler} with router {best.router} "
            f"on {best.machine}"
        )


def _cost(outcome: Outcome) -> tuple[float, int]:
    """Return what is compared: the price, then the count; of equals the first is taken."""
    price = outcome.price_per_hour
    return float("inf") if price is None else price, outcome.replicas
