"""Admission, tested on a model of an engine: a number of slots with a fixed time per token."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galley.errors import QueueFull
from galley.service.admission import Admission, Claim
from galley.service.turns import ANONYMOUS
from galley.types import EngineRequest, Generate, SamplingParams
from galley.types.engine_stats import EngineStats

SEATS = 4
TOKENS_PER_SECOND = 100.0


def new_request(name: str, output: int = 50, **fields: object) -> EngineRequest:
    sampling = SamplingParams(max_tokens=output)
    payload = Generate(prompt=[1] * 10, sampling=sampling)
    return EngineRequest(id=name, payload=payload, **fields)  # type: ignore[arg-type]


class Model:
    """First come, first served; a slot works through a sequence's tokens at its share of the pace."""

    def __init__(self, max_queue: int = 1000) -> None:
        self.admission = Admission(SEATS, max_queue)
        self.now = 0.0
        self.waiting: list[tuple[Claim, int, float]] = []
        self.running: list[tuple[Claim, int, float]] = []
        self.waits: dict[int, float] = {}

    def submit(self, request: EngineRequest, deadline: float = math.inf) -> int:
        self.admission.check([request], deadline, now=self.now)
        claim = self.admission.add(request, now=self.now)
        self.waiting.append((claim, claim.most, self.now))
        self._tell()
        return id(claim)

    def run(self, seconds: float) -> None:
        step = SEATS / TOKENS_PER_SECOND
        until = self.now + seconds
        while self.now < until:
            while self.waiting and len(self.running) < SEATS:
                claim, length, since = self.waiting.pop(0)
                self.waits[id(claim)] = self.now - since
                self.running.append((claim, length + claim.prompt, since))
            self._tell()
            self.now += step
            left = []
            for claim, tokens, since in self.running:
                if tokens > 1 and tokens <= claim.most:
                    self.admission.progress(claim, 1, 0, now=self.now)
                if tokens > 1:
                    left.append((claim, tokens - 1, since))
                    continue
                self.admission.progress(claim, 1, 0, now=self.now)
                self.admission.remove(claim, finished=True, now=self.now)
            self.running = left
            self._tell()

    def _tell(self) -> None:
        stats = EngineStats(running=len(self.running), waiting=len(self.waiting))
        self.admission.observe(stats, working=True, now=self.now)


def measured() -> Model:
    model = Model()
    for index in range(20):
        model.submit(new_request(f"warm{index}"))
    model.run(60.0)
    assert not model.running
    return model


def test_without_a_measurement_all_requests_are_admitted() -> None:
    model = Model()
    for index in range(50):
        model.submit(new_request(str(index)), deadline=0.001)


@pytest.mark.parametrize("idle", [0.0, 45.0, 4500.0])
def test_a_full_queue_states_the_time_until_half_of_it_is_done(idle: float) -> None:
    model = measured()
    model.now += idle
    for index in range(SEATS + 1000):
        model.submit(new_request(str(index)))
    with pytest.raises(QueueFull) as refused:
        model.submit(new_request("late"))
    assert refused.value.retry_after == 60.0
    model.admission._max_queue = 20  # half of 20 are ten, of 60 tokens each
    with pytest.raises(QueueFull) as refused:
        model.submit(new_request("late"))
    assert refused.value.retry_after == pytest.approx(10 * 60 / TOKENS_PER_SECOND, abs=1.5)


def test_the_predicted_wait_is_the_wait() -> None:
    model = measured()
    for index in range(40):
        model.submit(new_request(str(index)))
    model.run(3.0)
    [predicted] = predictions(model, [new_request("x")])
    last = model.submit(new_request("last"))
    model.run(60.0)
    own = 60 * SEATS / TOKENS_PER_SECOND
    assert model.waits[last] + own == pytest.approx(predicted, rel=0.25)


def test_a_deadline_that_would_be_missed_is_refused_with_the_seconds() -> None:
    model = measured()
    for index in range(40):
        model.submit(new_request(str(index)))
    model.submit(new_request("patient"), deadline=model.now + 600)
    with pytest.raises(
        QueueFull, match=r"expected in \d+\.\d seconds.* in 10\.0 seconds"
    ) as refused:
        model.submit(new_request("hasty"), deadline=model.now + 10)
    assert refused.value.retry_after >= 10
    with pytest.raises(QueueFull):
        model.admission.check_early(ANONYMOUS, 0, model.now + 10, now=model.now)
    model.admission.check_place(ANONYMOUS, now=model.now)


def test_all_of_a_request_must_fit_in_time() -> None:
    model = measured()
    deadline = model.now + 30
    model.submit(new_request("one"), deadline)
    many = [new_request(str(index)) for index in range(100)]
    with pytest.raises(QueueFull):
        model.admission.check(many, deadline, now=model.now)


def test_a_free_slot_takes_the_next_request() -> None:
    model = measured()
    for index in range(SEATS - 1):
        model.submit(new_request(str(index), output=10_000))
    model.submit(new_request("short"), deadline=model.now + 0.5)


def test_another_tenants_queue_is_not_in_the_way() -> None:
    model = measured()
    for index in range(100):
        model.submit(new_request(str(index), tenant="heavy"))
    deadline = model.now + 15
    with pytest.raises(QueueFull):
        model.submit(new_request("more", tenant="heavy"), deadline)
    model.submit(new_request("little", tenant="light"), deadline)


def test_no_request_waits_for_a_lower_priority() -> None:
    model = measured()
    for index in range(100):
        model.submit(new_request(str(index), priority=1))
    with pytest.raises(QueueFull):
        model.submit(new_request("late", priority=1), deadline=model.now + 15)
    model.submit(new_request("urgent", priority=0), deadline=model.now + 15)


def test_high_token_limits_reject_nothing_when_answers_are_short() -> None:
    """Most requests leave max_tokens at the context's length and end long before."""
    model = measured()
    claims = [
        model.admission.add(new_request(str(i), output=100_000), now=model.now)
        for i in range(2 * SEATS)
    ]
    model.admission.check([new_request("x")], model.now + 20, now=model.now)
    for claim in claims:
        model.admission.remove(claim, finished=False, now=model.now)


def predictions(model: Model, requests: list[EngineRequest]) -> list[float]:
    """Return the shortest accepted deadline, by bisection."""
    found = []
    for request in requests:
        low, high = 0.0, 10_000.0
        while high - low > 0.01:
            middle = (low + high) / 2
            try:
                model.admission.check([request], model.now + middle, now=model.now)
                high = middle
            except QueueFull:
                low = middle
        found.append(high * 0.75)
    return found


@given(
    st.lists(st.tuples(st.sampled_from(("add", "give", "work", "wait", "end")), st.integers(0, 9)))
)
def test_what_each_engine_computes_is_the_sum_over_its_sequences(
    events: list[tuple[str, int]],
) -> None:
    admission, now = Admission(SEATS, 1000), 0.0
    claims: list[Claim] = []
    for number, (event, which) in enumerate(events):
        if event == "add":
            claims.append(admission.add(new_request(f"r{number}"), now=now))
        elif event == "wait":
            now += which
            admission.check([new_request("next")], now + 1e9, now=now)  # may estimate again
        elif claims:
            claim = claims[which % len(claims)]
            if event == "give":
                admission.give(claim, f"engine{which % 3}", cached=which // 3)
            elif event == "work":
                admission.progress(claim, 1, 0, now=now)
            else:
                claims.remove(claim)
                admission.remove(claim, finished=True, now=now)
        for engine in ("", "engine0", "engine1", "engine2"):
            expected = sum(
                claim.owed - (0 if claim.begun else claim.cached)
                for claim in claims
                if claim.engine == engine
            )
            assert admission.uncached_of(engine) == pytest.approx(expected, abs=1e-6)


def test_a_cached_prompt_is_no_work_for_its_engine() -> None:
    admission = Admission(SEATS, 1000)
    request = new_request("r")
    prompt, output = request.payload.reads, request.payload.writes
    claim = admission.add(request, now=0.0)
    admission.give(claim, "near", cached=prompt - 1)
    assert admission.uncached_of("near") == 1 + output
    admission.give(claim, "far", cached=0)
    assert (admission.uncached_of("near"), admission.uncached_of("far")) == (0, prompt + output)
    assert admission.progress(claim, 2, prompt - 1, now=1.0) == 2 + 1
    assert admission.progress(claim, 2, prompt - 1, now=2.0) == 2
    assert admission.uncached_of("far") == output - 4
