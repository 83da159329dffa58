"""``galley tune``: goals, spaces, the search, and what it writes."""

import math
import random
import statistics
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from galley.bench.serve.samples import Sample
from galley.engine.read_model import read_model
from galley.errors import SettingsError
from galley.formats.source import resolve_model
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings
from galley.settings.quality_gate import QualityGate
from galley.traffic.trace import Turn, read_trace
from galley.tune.advice import Prices, settings_file, what_it_takes
from galley.tune.forecast import Forecast, Forecaster, Traffic
from galley.tune.goal import Limit, parse_goal
from galley.tune.job import Job, Wanted
from galley.tune.page import page
from galley.tune.search import Considered, Search, Tuning, pareto, ranked, rounds
from galley.tune.space import Candidate, candidates, default_space, parse_space
from galley.tune.trials import Trial
from tests.cli.command import galley
from tests.peaks import peaks_of

PEAKS = peaks_of(1e10)
GOAL = parse_goal("ttft p95 < 500ms, tpot p95 < 60ms")
TURNS = 90


def candidate(**changes: object) -> Candidate:
    known = {
        "weight_dtype": "int8",
        "kv_dtype": "bfloat16",
        "max_batch_tokens": 512,
        "max_running": 8,
        "threads": 2,
        "replicas": 1,
        "speculation": "off",
    }
    return msgspec.convert({**known, **changes}, Candidate)


def job(tmp_path: Path, *, file: str = "tune.json", **changes: Any) -> Job:
    """Prepare a tuning of the bundled model with a single candidate, without a quality gate."""
    trace = tmp_path / "trace.jsonl"
    if not trace.exists():
        lines = [
            {"timestamp": i / 20, "input_length": 40, "output_length": 1 + i % 2} for i in range(4)
        ]
        trace.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    known: dict[str, Any] = {
        "settings": EngineSettings(prefix_cache=False),
        "goal": GOAL,
        "turns": read_trace(trace),
        "trace": str(trace),
        "speed": 1.0,
        "tried": [f"{name}={value}" for name, value in candidate(max_running=4).values.items()],
        "gate": QualityGate({}),
    }
    return Job.prepare(Wanted(**{**known, **changes}), tmp_path / file)


def search(tuning: Tuning, measure: Callable[[Candidate, int], Trial]) -> Trial:
    return Search(tuning=tuning, goal=GOAL, count=9, turns=TURNS, measure=measure).best()


def trial(one: Candidate, turns: int, *, ttft: float, cost: float) -> Trial:
    return Trial(
        candidate=one,
        turns=turns,
        latencies={"ttft p95": ttft, "tpot p95": 0.01},
        cpu_seconds=cost,
        output_tokens=1000,
    )


def sample(ttft: float, error: str = "") -> Sample:
    return Sample(0.0, 0.0, ttft + 1, array("d", [ttft, ttft + 1]), output_tokens=2, error=error)


def test_goals_are_limits_of_quantiles() -> None:
    assert parse_goal("ttft p95 < 500ms,  tpot p99.9 <= 0.06s") == [
        Limit("ttft", 95.0, 0.5),
        Limit("tpot", 99.9, 0.06),
    ]
    assert parse_goal(", ".join(map(str, GOAL))) == GOAL


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ttft < 500ms",
        "ttft p95 < 500",
        "ttft p100 < 1s",
        "speed p95 < 1s",
        "ttft p95 < 0s",
        "ttft p95 < 1s, ttft p95 < 2s",
    ],
)
def test_other_goals_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--slo"):
        parse_goal(text)


def test_a_failed_request_waits_without_end() -> None:
    limit = Limit("ttft", 95, 1)
    good = [sample(0.1 * (i % 5)) for i in range(19)]
    assert limit.of([*good, sample(0.9)]) == pytest.approx(0.4)
    assert limit.of([*good[:18], sample(0, "http 503"), sample(0, "timeout")]) == math.inf
    assert limit.of([sample(0, "connect")]) == math.inf


def test_the_space_is_every_valid_combination() -> None:
    space = parse_space(
        default_space(2, quantized=False), ["threads=1", "max-running=64, 256", "speculation=off"]
    )
    found = candidates(space, EngineSettings(), 2)
    assert len(set(found)) == len(found)
    # 256 running sequences need a step of as many tokens.
    assert {(c.max_running, c.max_batch_tokens) for c in found} == {
        (64, 128),
        (64, 512),
        (64, 2048),
        (256, 512),
        (256, 2048),
    }
    for text in ("batching=static", "threads=", "threads=many"):
        with pytest.raises(SettingsError, match="--try"):
            parse_space(space, [text])
    with pytest.raises(SettingsError, match="weight_dtype"):
        candidates(parse_space(space, ["weight_dtype=int3"]), EngineSettings(), 2)


def test_replicas_have_cores_of_their_own() -> None:
    for cores, pairs in (
        (1, {(1, 1)}),
        (2, {(1, 1), (1, 2), (2, 1)}),
        (4, {(1, 2), (1, 4), (2, 2)}),
    ):
        found = candidates(default_space(cores, quantized=False), EngineSettings(), cores)
        assert {(one.replicas, one.threads) for one in found} == pairs
    space = parse_space(default_space(4, quantized=False), ["replicas=2", "threads=4"])
    with pytest.raises(
        SettingsError, match="2 replicas of 4 threads each are more than the 4 cores"
    ):
        candidates(space, EngineSettings(), 4)
    with pytest.raises(SettingsError, match="at least 1"):
        candidates(parse_space(space, ["replicas=0"]), EngineSettings(), 4)


def test_ranks_on_other_machines_serve_one_replica() -> None:
    base = EngineSettings(tensor_parallel=2, tensor_parallel_rank=("10.0.0.7:8500",))
    space = parse_space(default_space(4, quantized=False), ["threads=1"])
    assert {one.replicas for one in candidates(space, EngineSettings(), 4)} == {1, 2}
    assert {one.replicas for one in candidates(space, base, 4)} == {1}
    with pytest.raises(SettingsError, match="cannot share the ranks"):
        candidates(parse_space(space, ["replicas=2"]), base, 4)


def test_a_quantized_checkpoint_keeps_its_weights() -> None:
    assert default_space(4, quantized=True)["weight_dtype"] == ["auto"]


def _tuning() -> tuple[Tuning, dict[Candidate, float]]:
    """Return candidates in a predicted order that is nearly right, and what they really cost."""
    every = [
        candidate(max_batch_tokens=b, max_running=r, threads=t)
        for b in (128, 512)
        for r in (4, 8, 16)
        for t in (1, 2)
    ]
    costs = {one: 1.0 + 0.1 * place for place, one in enumerate(every)}
    order = [every[i] for i in (2, 0, 1, 5, 3, 4, 6, 9, 7, 8, 11, 10)]
    tuning = tuning_of({one: 1 + place / 10 for place, one in enumerate(order)})
    return tuning, costs


def test_the_search_finds_the_best_with_little_of_the_trace() -> None:
    tuning, costs = _tuning()
    served = []

    def measure(one: Candidate, turns: int) -> Trial:
        served.append(turns)
        return trial(one, turns, ttft=0.2, cost=costs[one])

    best = search(tuning, measure)
    assert best.turns == TURNS
    assert costs[best.candidate] == min(costs.values())
    assert sum(served) <= TURNS * len(costs) / 4


def test_candidates_are_chosen_by_what_was_measured_before() -> None:
    """Over random machines, of which the plan knows what some settings gain, and not exactly.

    So the nine candidates that it predicts to be the best are nearly as good as each other.
    """
    space = default_space(2, quantized=False)
    every = candidates(space, EngineSettings(), 2)
    pairs = [(name, value) for name, values in space.items() for value in values]
    ratios, ratios_of_nine, shares = [], [], []
    for seed in range(10):
        own = random.Random(seed)
        known, unknown = ({pair: own.gauss(0, sd) for pair in pairs} for sd in (0.4, 0.2))
        known |= {pair: 0.0 for pair in pairs if pair[0] in PREDICTED_TO_BE_ALIKE}
        predicted = {one: math.exp(sum(known[p] for p in one.values.items())) for one in every}
        costs = {
            one: 20 * cost * math.exp(sum(unknown[p] for p in one.values.items()))
            for one, cost in predicted.items()
        }
        tuning = tuning_of(predicted)

        def measure(
            one: Candidate,
            turns: int,
            costs: dict[Candidate, float] = costs,
            own: random.Random = own,
        ) -> Trial:
            return trial(one, turns, ttft=0.2, cost=costs[one] * math.exp(own.gauss(0, 0.05)))

        lowest = min(costs.values())
        ratios.append(costs[search(tuning, measure).candidate] / lowest)
        nine = [one.candidate for one in tuning.considered[:9]]
        ratios_of_nine.append(min(costs[one] for one in nine) / lowest)
        shares.append(sum(one.turns for one in tuning.trials) / TURNS / len(every))
    assert statistics.median(ratios) < 1.05 < statistics.median(ratios_of_nine)
    assert max(shares) < 0.02


PREDICTED_TO_BE_ALIKE = ("kv_dtype", "max_batch_tokens", "max_running", "speculation")


def tuning_of(predicted: dict[Candidate, float]) -> Tuning:
    """Return a tuning with predicted costs, in which all candidates meet the goal."""
    considered = [
        Considered(
            candidate=one,
            forecast=Forecast(ttft=0.1, tpot=0.01, cost=cost, at_once=2, fits=True, load=0.1),
        )
        for one, cost in predicted.items()
    ]
    return Tuning(conditions={"model": "m"}, peaks=PEAKS, considered=ranked(considered, GOAL))


def test_a_candidate_that_no_measurement_can_make_best_is_not_measured() -> None:
    cheap, dear = candidate(), candidate(threads=1)
    predicted = {cheap: 1.0, dear: 3.0}
    measured: list[Candidate] = []

    def measure(one: Candidate, turns: int) -> Trial:
        measured.append(one)
        return trial(one, turns, ttft=0.2, cost=50 * predicted[one])

    tuning = tuning_of(predicted)
    assert search(tuning, measure).candidate == cheap
    assert set(measured) == {cheap}


def test_rounds_that_decide_nothing_are_left_out() -> None:
    assert rounds(9, 90) == [(9, 10), (3, 30), (1, 90)]
    assert rounds(3, 90) == [(3, 10), (1, 90)]
    assert rounds(1, 5) == [(1, 5)]
    assert rounds(40, 5) == [(40, 1), (13, 2), (4, 5)]


def test_the_search_goes_on_where_it_was() -> None:
    tuning, costs = _tuning()

    def stopping(one: Candidate, turns: int) -> Trial:
        if len(tuning.trials) == 3:
            raise KeyboardInterrupt
        return trial(one, turns, ttft=0.2, cost=costs[one])

    with pytest.raises(KeyboardInterrupt):
        search(tuning, stopping)
    kept = msgspec.json.decode(msgspec.json.encode(tuning), type=Tuning)
    again: list[tuple[Candidate, int]] = []

    def measure(one: Candidate, turns: int) -> Trial:
        again.append((one, turns))
        return trial(one, turns, ttft=0.2, cost=costs[one])

    best = search(kept, measure)
    assert costs[best.candidate] == min(costs.values())
    assert not {(t.candidate, t.turns) for t in tuning.trials} & set(again)


def test_the_cheapest_that_fails_on_the_whole_trace_gives_way() -> None:
    tuning, costs = _tuning()
    cheapest = min(costs, key=lambda one: costs[one])

    def measure(one: Candidate, turns: int) -> Trial:
        late = one == cheapest and turns == TURNS
        return trial(one, turns, ttft=2.0 if late else 0.2, cost=costs[one])

    best = search(tuning, measure)
    assert best.factor(GOAL) <= 1
    assert costs[best.candidate] == sorted(costs.values())[1]


def test_the_pareto_front_has_no_trial_that_another_beats() -> None:
    one = candidate()
    trials = [
        trial(one, TURNS, ttft=t, cost=c) for t, c in ((0.4, 1), (0.5, 2), (0.3, 2), (0.1, 5))
    ]
    front = pareto(trials, GOAL)
    assert [(t.latencies["ttft p95"], t.cost) for t in front] == [(0.4, 1), (0.3, 2), (0.1, 5)]


def test_predictions_follow_load_and_threads(tmp_path: Path) -> None:
    model = read_model(EngineSettings(), resolve_model(""))
    forecaster = Forecaster(model, PEAKS)
    few, many = Traffic(1.0, 200, 50), Traffic(1000.0, 200, 50)
    calm, busy = (forecaster.forecast(candidate(), load) for load in (few, many))
    assert calm is not None
    assert busy is not None
    assert calm.at_once == 1
    assert calm.keeps_up
    assert busy.at_once == 8
    assert not busy.keeps_up
    assert busy.ttft > calm.ttft
    slow = forecaster.forecast(candidate(threads=1), few)
    assert slow is not None
    assert slow.ttft > calm.ttft
    order = ranked(
        [Considered(candidate=candidate(), forecast=f) for f in (busy, None, calm)], GOAL
    )
    assert [one.forecast for one in order] == [calm, busy, None]


def test_the_settings_file_can_be_served_and_says_why(tmp_path: Path) -> None:
    tuning, costs = _tuning()
    tuning.losses = {
        "int8, bfloat16": {"kl": 0.001, "kl99": 0.01, "top1": 0.99},
        "int4, bfloat16": {"kl": 0.1, "kl99": 1.0, "top1": 0.8},
    }
    best = search(tuning, lambda one, turns: trial(one, turns, ttft=0.2, cost=costs[one]))
    tuned = EngineSettings(model="org/<m>", revision="v2", sampling_defaults=("top_k=5",))
    text = settings_file(tuned, tuning, best, GOAL, Prices(0.36, 2))
    file = tmp_path / "galley.yaml"
    file.write_text(text)
    settings = Settings.load({}, file=file)
    assert settings.model == "org/<m>"
    assert settings.max_batch_tokens == best.candidate.max_batch_tokens == 128
    others = {"revision": "v2", "sampling_defaults": ["top_k=5"]}
    assert set(yaml.safe_load(text)) == {"model", *best.candidate.values, *others}
    assert settings.revision == "v2"
    assert settings.sampling_defaults == ("top_k=5",)
    for line in text.splitlines()[2:]:
        assert line.startswith("model") or "  # " in line
    assert "int4: loses more than the quality gate allows" in text
    # 1 CPU second for 1,000 tokens, at 0.18 dollars an hour for a core.
    assert "$0.05 per million tokens" in text
    made = page(tuning, best, GOAL, Prices(None, 2), text, ["Nearest: <x>."])
    assert "Pareto front" in made
    assert "&lt;x&gt;" in made
    for url in ("http://", "https://", "<script"):
        assert url not in made


def test_an_unmet_goal_says_what_it_would_take() -> None:
    model = read_model(EngineSettings(), resolve_model(""))
    nearest = trial(candidate(), TURNS, ttft=1.0, cost=1)
    said = what_it_takes(nearest, GOAL, model, PEAKS, Traffic(40.0, 400, 50))
    assert said[0].startswith("Nearest: weight_dtype int8")
    assert "servers like this one" in said[1]
    hopeless = parse_goal("ttft p95 < 0.001ms")
    said = what_it_takes(nearest, hopeless, model, PEAKS, Traffic(40.0, 400, 50))
    assert said[1].startswith("Not even 64 such servers")
    assert said[2].startswith("No machine")
    silent = msgspec.structs.replace(nearest, latencies={"ttft p95": None, "tpot p95": 0.01})
    said = what_it_takes(silent, GOAL, model, PEAKS, Traffic(40.0, 400, 50))
    assert "no answer" in said[1]


def test_figures_of_other_conditions_are_not_taken(tmp_path: Path) -> None:
    kept = job(tmp_path).tuning
    assert job(tmp_path).tuning.peaks == kept.peaks
    others: dict[str, dict[str, Any]] = {
        "other settings": {"settings": EngineSettings(activations="float32")},
        "texts of the losses": {"data": tmp_path / "texts.txt"},
        "trace": {"turns": [replace(turn, due=2 * turn.due) for turn in turns_of(tmp_path)]},
    }
    for name, changes in others.items():
        with pytest.raises(SettingsError, match=f"other conditions .{name}"):
            job(tmp_path, **changes)


def turns_of(tmp_path: Path) -> list[Turn]:
    return read_trace(tmp_path / "trace.jsonl")


def test_a_limit_that_the_trace_cannot_measure_is_refused(tmp_path: Path) -> None:
    job(tmp_path)
    short = [
        replace(turn, line=msgspec.structs.replace(turn.line, output_length=1))
        for turn in turns_of(tmp_path)
    ]
    with pytest.raises(SettingsError, match=r"tpot p95 < 60ms: no request of .* second token"):
        job(tmp_path, turns=short, file="other.json")


def test_a_measured_server_has_the_engine_settings_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Keys would refuse the requests, a record would grow, and stored answers would cost nothing.
    record = tmp_path / "record"
    (tmp_path / "galley.yaml").write_text(
        f"record: {record}\nresponse_cache: exact\nadmin_key: [admin]\n"
    )
    monkeypatch.setenv("GALLEY_API_KEY", "secret")
    monkeypatch.chdir(tmp_path)
    prepared = job(tmp_path)
    [one] = prepared.tuning.considered
    found = prepared.bench.measure(one.candidate, 4)
    assert found.problem == ""
    assert found.output_tokens == 6
    assert found.cached_share == 0
    assert not record.exists()


def test_a_model_is_tuned_and_an_impossible_goal_gets_its_nearest(tmp_path: Path) -> None:
    lines = [
        f'{{"timestamp": {i / 20}, "input_length": {20 + i}, "output_length": 4}}' for i in range(6)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(lines) + "\n")
    assert len(read_trace(trace)) == 6
    narrow = []
    for one in ("weight_dtype=int8", "kv_dtype=bfloat16", "max_batch_tokens=128", "threads=1"):
        narrow += ["--try", one]
    found = galley(
        "tune",
        *("--slo", "ttft p95 < 1us", "--trace", trace, "--quality-gate", "kl=1"),
        *narrow,
        *("--try", "max_running=4", "--try", "speculation=off", "--try", "replicas=1,2"),
        cwd=tmp_path,
    )
    assert found.returncode == 0, found.stderr
    assert "The goal is not met" in found.stdout
    assert "Nearest: weight_dtype int8" in found.stdout
    assert "The goal is NOT met" in (tmp_path / "galley.yaml").read_text()
    kept = msgspec.json.decode((tmp_path / "galley-tune.json").read_bytes(), type=Tuning)
    whole = kept.trials[-1]
    assert whole.turns == 6
    assert whole.output_tokens == 24
    assert whole.cpu_seconds > 0
    assert kept.losses["int8, bfloat16"]["top1"] > 0.9
    again = galley("tune", "--slo", "ttft p95 < 1s", "--trace", trace, cwd=tmp_path)
    assert again.returncode == 2
    assert "exists" in again.stderr
