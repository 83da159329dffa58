"""Simulated replicas: against queueing theory, against a plan, against a simulation of each step."""

import dataclasses
import json
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from galley.bench.serve.arrivals import poisson
from galley.bench.serve.results import Point, Quantiles, Report, Timeline
from galley.cli.main import app
from galley.cluster.router import PrefixRouter
from galley.errors import SettingsError
from galley.models.registry import build_program
from galley.plan.cluster.answer import Target, fewest
from galley.plan.cluster.calibrate import Measured, calibrate, closed_loop
from galley.plan.cluster.compare import Query, answer
from galley.plan.cluster.engine import Chunk, Engine
from galley.plan.cluster.routers import ROUTERS, Affinity
from galley.plan.cluster.simulate import QUANTILES, Loss, simulate
from galley.plan.cluster.traffic import Traffic, synthetic
from galley.plan.hardware import choose_machines, read_machines
from galley.plan.predict import predict
from galley.plan.sizes import ModelSizes
from galley.plan.steps import Load
from galley.service.routing import ReplicaFigures
from galley.traffic.trace import TraceLine, Turn
from tests.plan.shapes import LLAMA_7B, MACHINE
from tests.plan.simulated import SIZES, engine, turns


@dataclasses.dataclass(frozen=True, slots=True)
class CountedFigures(ReplicaFigures):
    """Figures of a replica with ``requests`` unfinished ones."""

    requests: int


def prefixed(count: int, rate: float, prefixes: int, tokens: int, output: int = 20) -> Traffic:
    drawn = iter([(7919 * number) % 104_729 % prefixes for number in range(count)])
    return synthetic(
        poisson(rate, seed=1, requests=count),
        lambda: 50,
        lambda: output,
        prefix=lambda: next(drawn),
        prefix_tokens=tokens,
    )


def test_the_router_is_that_of_production() -> None:
    assert ROUTERS["galley"] is PrefixRouter


@pytest.mark.parametrize(("prompt", "output"), [(700, 300), (40, 2), (512, 64)])
def test_a_request_by_itself_takes_as_long_as_its_plan(prompt: int, output: int) -> None:
    plan = predict(SIZES, MACHINE, Load(prompt=prompt, output=output, concurrency=1))
    assert plan is not None
    found = simulate(engine(), 1, "galley", turns((0.0, prompt, output)))
    assert found.ttft_s["p50"] == pytest.approx(plan.ttft, rel=1e-9)
    # The plan takes the context halfway through the output.
    assert found.tpot_s["p50"] == pytest.approx(plan.tpot, rel=1e-3)
    assert found.price_per_hour == MACHINE.price


def test_waiting_is_that_of_a_queue_with_constant_service() -> None:
    """One seat and one token of output make an M/D/1 queue: its mean wait is rho D / (2 (1 - rho))."""
    one = engine(seats=1)
    service = one.seconds(0, 0.0, [Chunk(0, 100, last=True)])
    load = 0.7
    times = poisson(load / service, seed=3, requests=8000)
    traffic = turns(*((time, 100, 1) for time in times))
    found = simulate(one, 1, "round-robin", traffic)
    # Each wait by Lindley's recursion on the same arrivals.
    waits, free = [], 0.0
    for time in times:
        begin = max(free, time)
        waits.append(begin - time)
        free = begin + service
    waits.sort()
    for name in QUANTILES:
        expected = waits[round(int(name[1:]) / 100 * (len(waits) - 1))] + service
        assert found.ttft_s[name] == pytest.approx(expected, rel=0.01), name
    mean = sum(waits) / len(waits)
    assert found.ttft_s["mean"] == pytest.approx(mean + service, rel=1e-6)
    assert mean == pytest.approx(load * service / (2 * (1 - load)), rel=0.15)


class Stepped:
    """A replica that is simulated one step after the other, without a cache."""

    def __init__(self, one: Engine, requests: list[tuple[float, int, int]]) -> None:
        self.first: dict[int, float] = {}
        self.end: dict[int, float] = {}
        coming, waiting = deque(enumerate(requests)), deque[list[int]]()
        running: list[list[int]] = []  # index, tokens read, tokens written
        now = 0.0
        while coming or waiting or running:
            while coming and coming[0][1][0] <= now:
                waiting.append([coming.popleft()[0], 0, 0])
            held = sum(sum(requests[index][1:]) for index, _, _ in running)
            while waiting and len(running) < one.seats:
                held += sum(requests[waiting[0][0]][1:])
                if held > one.kv_tokens:
                    break
                running.append(waiting.popleft())
            if not running:
                now = coming[0][1][0]
                continue
            writing = [job for job in running if job[2]]
            left = max(one.batch_tokens // 4, one.batch_tokens - len(writing))
            parts = []
            for job in running:
                if not job[2] and left:
                    rows = min(left, requests[job[0]][1] - job[1])
                    parts.append((job, Chunk(job[1], rows, job[1] + rows == requests[job[0]][1])))
                    left -= rows
            context = sum(requests[i][1] + done for i, _, done in writing) / max(1, len(writing))
            now += one.seconds(len(writing), context, [chunk for _, chunk in parts])
            for job in writing:
                job[2] += 1
            for job, chunk in parts:
                job[1] += chunk.rows
                if chunk.last:
                    job[2] = 1
                    self.first[job[0]] = now
            for job in [job for job in running if job[2] == requests[job[0]][2]]:
                running.remove(job)
                self.end[job[0]] = now


@pytest.mark.parametrize(
    ("rate", "seats", "kv"), [(2.0, 64, 100_000), (8.0, 6, 100_000), (8.0, 64, 3000)]
)
def test_steps_taken_together_are_those_taken_one_by_one(rate: float, seats: int, kv: int) -> None:
    one = engine(seats, kv)
    times = poisson(rate, seed=5, requests=120)
    requests = [(t, 20 + 37 * n % 900, 1 + 53 * n % 200) for n, t in enumerate(times)]
    stepped = Stepped(one, requests)
    found = simulate(one, 1, "galley", turns(*requests))
    assert found.requests == len(requests) == len(stepped.end)
    assert found.seconds == pytest.approx(max(stepped.end.values()), rel=0.005)
    ttft = sorted(stepped.first[n] - requests[n][0] for n in stepped.first)
    # Times of steps differ slightly, so a request may arrive in another part of a step.
    for name in QUANTILES:
        expected = ttft[round(int(name[1:]) / 100 * (len(ttft) - 1))]
        assert found.ttft_s[name] == pytest.approx(expected, rel=0.12), name
    assert found.ttft_s["mean"] == pytest.approx(sum(ttft) / len(ttft), rel=0.03)
    tpot = sorted(
        (stepped.end[n] - stepped.first[n]) / (output - 1)
        for n, (_, _, output) in enumerate(requests)
        if output > 1
    )
    assert found.tpot_s["p50"] == pytest.approx(tpot[len(tpot) // 2], rel=0.03)


def measured(one: Engine, run: Measured) -> Measured:
    """Return a run with the times of an engine."""
    found = simulate(one, 1, "galley", closed_loop(run))
    return dataclasses.replace(run, ttft=found.ttft_s["mean"], tpot=found.tpot_s["mean"])


def test_calibration_finds_the_times_of_the_measured_replica() -> None:
    true = dataclasses.replace(engine(), decode_factor=1.7, prompt_factor=0.6)
    sizes = {"requests": 60, "prompt": 300, "output": 60, "ttft": 0.0, "tpot": 0.0}
    runs = [measured(true, Measured(concurrency=n, **sizes)) for n in (1, 8)]  # type: ignore[arg-type]
    found = calibrate(engine(), runs)
    assert found.decode_factor == pytest.approx(1.7, rel=0.01)
    assert found.prompt_factor == pytest.approx(0.6, rel=0.01)
    # Another load than those that were measured.
    other = Measured(concurrency=20, requests=60, prompt=500, output=90, ttft=0.0, tpot=0.0)
    assert measured(found, other).ttft == pytest.approx(measured(true, other).ttft, rel=0.02)


def test_calibration_tells_the_overhead_of_a_request_from_short_and_long_prompts() -> None:
    true = dataclasses.replace(engine(), decode_factor=1.3, prompt_factor=2.0, overhead=0.05)
    loads = [(1, 64), (8, 64), (1, 1500), (8, 1500)]
    runs = [
        measured(
            true,
            Measured(concurrency=n, requests=40, prompt=prompt, output=40, ttft=0.0, tpot=0.0),
        )
        for n, prompt in loads
    ]
    found = calibrate(engine(), runs)
    assert found.overhead == pytest.approx(0.05, rel=0.1)
    assert found.prompt_factor == pytest.approx(2.0, rel=0.05)
    # With prompts of one length, the factor has it all.
    assert calibrate(engine(), runs[:2]).overhead == 0


def test_calibration_refuses_times_that_no_factors_give() -> None:
    run = Measured(concurrency=4, requests=20, prompt=300, output=60, ttft=1e-6, tpot=1.0)
    with pytest.raises(SettingsError, match="no times of decoding and prompts"):
        calibrate(engine(), [run])


def test_lost_replicas_lose_no_request() -> None:
    traffic, price = prefixed(200, rate=40.0, prefixes=4, tokens=160), MACHINE.price
    assert price is not None
    calm = simulate(engine(), 4, "galley", traffic)
    loss = Loss(2, 100)
    hit = simulate(engine(), 4, "galley", traffic, loss)
    assert hit == simulate(engine(), 4, "galley", traffic, loss)
    assert calm.requests == hit.requests == 200
    assert hit.moved > 0
    # Lost replicas are of those that have to be there.
    assert hit.price_per_hour == calm.price_per_hour == 4 * price
    assert calm.moved == 0
    # What was delivered is not computed again, but read again.
    assert hit.tpot_s["p99"] > calm.tpot_s["p99"]


def test_replicas_are_lost_in_the_middle_of_sessions_that_begin_together() -> None:
    """Later turns have no time of their own, so half of the last time would be before the first answer."""
    sessions, count = 4, 10
    traffic = Traffic(
        [
            Turn(
                0.0,
                number - sessions if number >= sessions else None,
                1.0,
                TraceLine(
                    timestamp=0.0,
                    input_length=64 * (number // sessions + 1),
                    output_length=8,
                    hash_ids=[
                        1000 * (number % sessions) + k for k in range(number // sessions + 1)
                    ],
                    block_size=64,
                ),
            )
            for number in range(sessions * count)
        ]
    )
    found = answer(engine(), "galley", traffic, Query(Target(), replicas=2, lose=1))
    assert found.chosen is not None
    assert found.without_loss is not None
    # Blocks were lost that later turns would have found.
    assert found.chosen.cached_share < found.without_loss.cached_share
    assert found.chosen.requests == sessions * count


def test_the_router_of_galley_has_the_hits_of_one_big_cache() -> None:
    """Each cache has room for a third of the prefixes; one engine with room for all is what can be had."""
    tokens, prefixes = 1600, 12
    traffic = prefixed(400, rate=6.0, prefixes=prefixes, tokens=tokens)
    small = engine(kv_tokens=(prefixes // 3 + 3) * (tokens + 70))
    big = simulate(engine(kv_tokens=10**6), 1, "galley", traffic)
    shares = {router: simulate(small, 3, router, traffic).cached_share for router in ROUTERS}
    assert big.cached_share > 0.9
    assert shares["galley"] > big.cached_share - 0.03
    assert shares["galley"] > shares["power-of-two"] + 0.1
    assert shares["galley"] > shares["round-robin"] + 0.1


def test_a_turn_waits_for_the_one_before_and_finds_its_blocks() -> None:
    first = TraceLine(timestamp=0.0, input_length=64, output_length=64, hash_ids=[1], block_size=64)
    second = TraceLine(
        timestamp=0.0, input_length=192, output_length=2, hash_ids=[1, 2, 3], block_size=64
    )
    traffic = Traffic([Turn(0.0, None, 0.0, first), Turn(0.0, 0, 5.0, second)])
    found = simulate(engine(), 3, "galley", traffic)
    assert found.requests == 2
    assert found.seconds > 5.0
    assert found.ttft_s["p99"] < 1.0
    assert found.cached_share == pytest.approx(128 / (64 + 192))


def test_tenants_share_no_prefix() -> None:
    lines = [
        TraceLine(
            timestamp=0.0,
            input_length=640,
            output_length=2,
            hash_ids=[7],
            tenant=name,
            block_size=640,
        )
        for name in ("a", "b", "b")
    ]
    traffic = Traffic([Turn(10.0 * n, None, 0.0, line) for n, line in enumerate(lines)])
    found = simulate(engine(), 1, "galley", traffic)
    assert found.cached_share == pytest.approx(624 / (3 * 640))


def test_what_is_too_long_is_refused_and_counted() -> None:
    found = simulate(engine(kv_tokens=500), 1, "galley", turns((0.0, 400, 101), (0.0, 400, 100)))
    assert (found.requests, found.refused) == (1, 1)


def test_affinity_follows_prefixes_of_a_tenth_and_more() -> None:
    router, traffic = Affinity(0), prefixed(40, rate=1.0, prefixes=2, tokens=320)
    candidates = [CountedFigures(name, 0.0, None, set(), 0.0, 5) for name in "abc"]
    chosen: dict[int, set[int]] = {}
    for index in range(len(traffic)):
        prefix = (traffic.turns[index].line.hash_ids or [0])[0]
        chosen.setdefault(prefix, set()).add(
            router.choose(traffic.request(index), candidates).candidate
        )
    assert [len(replicas) for replicas in chosen.values()] == [1, 1]
    assert chosen[0] != chosen[1]
    # One that has over ten requests more than another gets none, whatever it has cached.
    busy = min(chosen[0])
    for more in (10, 11):
        loaded = [
            dataclasses.replace(one, requests=5 + more * (index == busy))
            for index, one in enumerate(candidates)
        ]
        taken = {router.choose(traffic.request(0), loaded).candidate for _ in range(20)}
        assert (busy in taken) == (more == 10)


def test_the_fewest_replicas_meet_the_goal_and_one_less_does_not() -> None:
    traffic = turns(*((t, 400, 60) for t in poisson(30.0, seed=2, seconds=20.0)))
    query = Query(Target(ttft=0.15, quantile="p95"), lose=1)
    found = answer(engine(), "galley", traffic, query)
    assert found.chosen is not None
    assert found.without_loss is not None
    assert found.without_loss.lost == 0
    count = found.chosen.replicas
    assert count > 2
    by_count = {outcome.replicas: outcome for outcome in found.tried}
    assert query.target.missed(by_count[count]) is None
    assert query.target.missed(by_count[count - 1]) is not None
    never = fewest(lambda n: simulate(engine(), n, "galley", traffic), Target(ttft=1e-6), 1, most=5)
    assert never is None


@pytest.mark.parametrize("name", ["T4", "c7a.4xlarge"])
def test_a_machine_without_room_is_refused(name: str) -> None:
    (machine,) = choose_machines(read_machines(), [name])
    large = ModelSizes.of(build_program(LLAMA_7B | {"num_hidden_layers": 160}), "bf16", "bfloat16")
    with pytest.raises(SettingsError, match=f"{name} has no room"):
        Engine.of(large, machine, 64, 512)


def planned(tmp_path: Path, *arguments: str) -> Any:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_7B))
    return CliRunner().invoke(app, ["plan", "cluster", str(path), *arguments])


def test_the_command_answers_in_a_table_json_and_html(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {
            "timestamp": 150 * n,
            "input_length": 600,
            "output_length": 40,
            "hash_ids": [n % 3, 10 + n],
        }
        for n in range(60)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = [tmp_path / "a.json", tmp_path / "a.html"]
    done = planned(
        tmp_path,
        *("--machine", "L4", "--machine", "H100", "--trace", str(trace), "--ttft", "0.5"),
        *("--lose", "1", "--json", str(files[0]), "--html", str(files[1])),
    )
    assert done.exit_code == 0, done.output
    answers = json.loads(files[0].read_text())["answers"]
    assert {(one["machine"], one["router"]) for one in answers} == {
        (machine, router) for machine in ("L4", "H100") for router in ROUTERS
    }
    for one in answers:
        assert one["chosen"]["requests"] == 60
        assert one["chosen"]["ttft_s"]["p95"] <= 0.5
        assert list(one["chosen"]["tpot_s"]) == ["mean", *QUANTILES]
    cheapest = min(one["chosen"]["price_per_hour"] for one in answers)
    assert f"${cheapest:.2f} an hour, also with 1 lost" in done.output
    page = files[1].read_text()
    assert page.count("<svg viewBox") >= 4
    assert "Time to first token, P95" in page


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--rate", "1"], "give a goal"),
        (["--ttft", "1"], "give --trace or --rate"),
        (["--rate", "1", "--ttft", "1", "--speed", "2"], "leave out --speed"),
        (["--rate", "1", "--ttft", "1", "--prefixes", "2"], "--prefix-tokens"),
        (["--rate", "9999", "--seconds", "9999", "--ttft", "1"], "1,000,000 at most"),
        (["--rate", "1", "--replicas", "2", "--lose", "2"], "leaves none"),
        (["--rate", "1", "--ttft", "1", "--prompt", "many"], "--prompt is 'many'"),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_name(
    tmp_path: Path, arguments: list[str], error: str
) -> None:
    done = planned(tmp_path, "--machine", "L4", *arguments)
    assert isinstance(done.exception, SettingsError)
    assert error in str(done.exception)


@pytest.mark.parametrize("option", ["--rate", "--seconds", "--ttft", "--tpot", "--speed"])
def test_what_is_not_a_number_is_refused(tmp_path: Path, option: str) -> None:
    done = planned(tmp_path, "--machine", "L4", "--rate", "1", "--ttft", "1", option, "nan")
    assert done.exit_code == 2
    assert f"'{option}': 'nan' is not a number" in done.output


def bench_report(file: Path, *runs: Measured, cached: float = 0.0) -> Path:
    """Write what ``galley bench serve --json`` writes."""

    def quantiles(seconds: float) -> Quantiles:
        return Quantiles(mean=seconds, p50=seconds, p95=seconds, p99=seconds, max=seconds, count=60)

    points = [
        Point(
            kind="concurrency",
            load=run.concurrency,
            requests=run.requests,
            completed=run.requests,
            errors={},
            details={},
            duration_s=1.0,
            counted=True,
            prompt_tokens=run.prompt,
            output_tokens=run.output,
            cached_share=cached,
            ttft_s=quantiles(run.ttft),
            tpot_s=quantiles(run.tpot),
            inter_token_s=None,
            latency_s=None,
            requests_per_s=1.0,
            output_tokens_per_s=1.0,
            total_tokens_per_s=1.0,
            audio_seconds_per_s=None,
            goodput_per_s=None,
            goodput_share=None,
            cost_per_million_output=None,
            cost_per_million=None,
            lag_s=quantiles(0.0),
            loop_delay_s=quantiles(0.0),
            cdfs={},
            timeline=Timeline(slice_s=1.0, running=[], output_tokens_per_s=[], ttft_s=[]),
        )
        for run in runs
    ]
    report = Report(
        galley="0",
        started="now",
        target="m",
        model="m",
        workload={},
        objective={},
        price_per_hour=None,
        client="c",
        points=points,
    )
    file.write_bytes(msgspec.json.encode(report))
    return file


def test_the_command_compares_autoscalers(tmp_path: Path) -> None:
    load = [
        "--machine",
        "L4",
        "--weight-dtype",
        "int8",
        "--rate",
        "1",
        "--peak",
        "10",
        "--seconds",
        "60",
    ]
    load += ["--period", "60", "--scaler", "galley", "--scaler", "ray-requests", "--ttft", "30"]
    html = tmp_path / "page.html"
    done = planned(tmp_path, *load, "--start-seconds", "5", "--html", str(html))
    assert done.exit_code == 0, done.output
    assert "L4, router galley, scaler galley: " in done.output
    assert "The goal is met with the fewest replicas by scaler " in done.output
    assert "Replicas that serve" in html.read_text(encoding="utf-8")
    for options, said in (
        (["--most-replicas", "3"], "there is no --scaler; leave out --most-replicas"),
        (
            ["--scaler", "galley", "--replicas", "5", "--most-replicas", "3"],
            "is less than --replicas 5",
        ),
        (["--period", "3", "--replicas", "1"], "--period needs --peak"),
        (["--peak", "0.5", "--replicas", "1"], "--peak 0.5 is less than --rate 1"),
    ):
        done = planned(tmp_path, "--machine", "L4", "--rate", "1", *options, "--ttft", "1")
        assert said in str(done.exception)


def test_the_command_calibrates_on_a_bench_report(tmp_path: Path) -> None:
    (machine,) = choose_machines(read_machines(), ["L4"])
    sizes = ModelSizes.of(build_program(LLAMA_7B), "int8", "bfloat16")
    true = dataclasses.replace(Engine.of(sizes, machine, 64, 512), decode_factor=1.5)
    sent = {"requests": 40, "prompt": 300, "output": 40, "ttft": 0.0, "tpot": 0.0}
    runs = [measured(true, Measured(concurrency=n, **sent)) for n in (1, 8)]  # type: ignore[arg-type]
    load = ["--machine", "L4", "--weight-dtype", "int8", "--rate", "1", "--seconds", "20"]
    load += ["--replicas", "2", "--router", "galley"]
    file = bench_report(tmp_path / "bench.json", *runs)
    done = planned(tmp_path, *load, "--measured", str(file))
    assert done.exit_code == 0, done.output
    assert "decoding takes 1.50 times as long as by the roofline, prompts 1.00" in done.output
    file = bench_report(tmp_path / "bench.json", *runs, cached=0.5)
    done = planned(tmp_path, *load, "--measured", str(file))
    assert "share nothing" in str(done.exception)
    file = bench_report(tmp_path / "bench.json", runs[1])
    done = planned(tmp_path, *load, "--measured", str(file))
    assert "--concurrency 1" in str(done.exception)
    done = planned(tmp_path, *load, "--machine", "H100", "--measured", str(file))
    assert "give one --machine" in str(done.exception)


def test_the_command_stands_in_the_help_of_plan() -> None:
    assert "plan cluster" in CliRunner().invoke(app, ["plan", "--help"]).output
    assert "--router" in CliRunner().invoke(app, ["plan", "cluster", "--help"]).output
