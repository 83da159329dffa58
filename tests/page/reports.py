"""Every page that a command writes, with figures that were made up."""

from array import array
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from galley.bench import cluster_page
from galley.bench.serve import page as serve_page
from galley.bench.serve.load import Run
from galley.bench.serve.measure import summarize
from galley.bench.serve.results import Point, Report
from galley.bench.serve.samples import Sample
from galley.calibration.measures import Loss, TokenLoss
from galley.lab import page as lab_page
from galley.lab.registry import experiment_of
from galley.lab.run import Outcome
from galley.plan.cluster.answer import Target
from galley.plan.cluster.compare import Query, answer
from galley.plan.cluster.scalers import Bounds
from galley.quality import contenders_page
from galley.quality import page as quality_page
from galley.quality.compare import Comparison, Measured, Side
from galley.quality.contenders import Comparison as Contenders
from galley.quality.contenders import Contender
from galley.tune import page as tune_page
from galley.tune.advice import Prices
from galley.tune.forecast import Forecast
from galley.tune.goal import parse_goal
from galley.tune.search import Considered, Tuning
from galley.tune.space import Candidate
from galley.tune.trials import Trial
from tests.lab.findings import finding, results
from tests.peaks import peaks_of
from tests.plan.simulated import engine, turns


def lab() -> str:
    """Return the page of ``galley lab``: a claim confirmed, one contradicted, one not measured."""
    outcomes = {"batching": 1.2, "prefix-cache": 60.0}
    found = results(**{name: Outcome(finding=finding(x)) for name, x in outcomes.items()})
    return lab_page.page([experiment_of(name) for name in (*outcomes, "moe")], found)


def tune() -> str:
    """Return the page of ``galley tune``: four trials, one of which failed, and a goal that is missed."""
    goal = parse_goal("ttft p95 < 500ms, tpot p95 < 60ms")
    candidates = [
        Candidate(
            weight_dtype="int8",
            kv_dtype="bfloat16",
            max_batch_tokens=tokens,
            max_running=8,
            threads=2,
            replicas=1,
            speculation="off",
        )
        for tokens in (128, 512, 2048)
    ]
    forecast = Forecast(ttft=0.1, tpot=0.01, cost=1.0, at_once=2, fits=True, load=0.5)
    trials = [
        Trial(
            candidate=one,
            turns=part,
            latencies={"ttft p95": 0.6 * number, "tpot p95": 0.02},
            cpu_seconds=3.0 / number,
            output_tokens=1000,
        )
        for one, number, part in zip(candidates, (1, 2, 1), (10, 10, 90), strict=True)
    ]
    trials.append(Trial(candidate=candidates[0], turns=90, problem="no <memory> left"))
    tuning = Tuning(
        conditions={"model": "<m&m>", "machine": "a CPU"},
        peaks=peaks_of(1e9),
        losses={"int8, bfloat16": {"kl": 0.001, "kl99": 0.01, "top1": 0.99}},
        considered=[Considered(candidate=one, forecast=forecast) for one in candidates],
        trials=trials,
    )
    said = ["Nearest: these settings.", "2 servers like this one are predicted to meet it."]
    return tune_page.page(tuning, trials[2], goal, Prices(0.36, 2), "threads: 2  # why\n", said)


def replay() -> str:
    """Return the page of ``galley replay --against``, which is that of ``galley bench serve``."""
    return serve_page.page([("before", _report(1.0)), ("after", _report(1.5))])


def _report(slower: float) -> Report:
    samples = [
        Sample(
            due,
            due,
            due + slower,
            array("d", [due + 0.3 * slower, due + 0.6 * slower, due + slower]),
            error="connection lost" if number == 7 else "",
            counted=True,
            prompt_tokens=10,
            output_tokens=4,
        )
        for number, due in enumerate(0.2 * n for n in range(30))
    ]
    run = Run(samples, array("d", [0.0, 0.002]))
    objective = {"ttft": 0.6}
    point = summarize(run, kind="trace", load=5.0, objective=objective, price_per_hour=3.6)
    return Report(
        galley="1",
        started="2025-01-01T00:00:00+00:00",
        target="http://host",
        model="<m&m>",
        workload={"trace": "record"},
        objective=objective,
        price_per_hour=3.6,
        client="a cpu",
        points=[point],
    )


def cluster() -> str:
    """Return the page of ``galley plan cluster``, of two routers and an autoscaler."""
    traffic = turns(*((0.2 * n, 200, 20) for n in range(40)))
    query = Query(Target(ttft=0.5), replicas=2, bounds=Bounds(1, 4, start=5.0, first_token=2.0))
    answers = [
        answer(engine(), router, traffic, query, scaler)
        for router, scaler in (("galley", ""), ("round-robin", ""), ("galley", "hpa-requests"))
    ]
    return cluster_page.page(answers, query, {"traffic": "40 requests"})


def quality() -> str:
    """Return the page of ``galley eval quality``."""
    base, small = (
        Side(
            name="<m>",
            weights=weights,
            activations="bfloat16",
            weight_bytes=size,
            prefill_tokens_per_s=900.0,
            decode_tokens_per_s=40.0,
            right=3,
            questions=4,
        )
        for weights, size in (("bf16", 8_000_000), ("int4", 2_000_000))
    )
    measured = Measured(
        side=small,
        loss=Loss(100, 9.0, 9.5, 0.02, 0.3, 1.0, 0.95),
        tokens=(TokenLoss(5, 40, 0.03, 0.9), TokenLoss(6, 60, 0.01, 0.98)),
        quantiles=tuple(n / 100 for n in range(101)),
        greedy_tokens=12.0,
        greedy_length=20.0,
    )
    spelled = {5: "<a>", 6: " b"}
    return quality_page.page(Comparison(base, (measured,), "texts", 4, spelled))


def contenders() -> str:
    """Return the page of ``galley compare``, one of which failed."""
    report = _report(1.0)
    [point] = report.points
    points = tuple(msgspec.structs.replace(point, load=load) for load in (1.0, 8.0))
    known: Any = {
        "galley": "1",
        "started": "now",
        "model": "m",
        "machine": "a machine",
        "workload": {"requests": "30"},
        "reference": "m",
        "reference_error": "",
    }
    engines = (
        _contender("native", points),
        _contender("llama-cpp", points),
        Contender(engine="missing", model="m", error="it <broke>"),
    )
    return contenders_page.page(Contenders(**known, contenders=engines))


def _contender(name: str, points: tuple[Point, ...]) -> Contender:
    return Contender(engine=name, model="m", start_s=1.0, memory_bytes=1 << 30, points=points)


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    made.__name__: made for made in (lab, tune, replay, cluster, quality, contenders)
}
