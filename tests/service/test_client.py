"""The engine client against a real engine process, without HTTP."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import msgspec
import psutil
import pytest

from galley import SamplingParams
from galley.errors import (
    Conflict,
    EngineNotReady,
    ModelError,
    QueueFull,
    RequestError,
    SettingsError,
)
from galley.service.client import EngineClient
from galley.service.requests import choice_seed, expand
from galley.service.streams import OutputStream
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest, Output, SamplingDefaults
from galley.types.model_info import ModelInfo, TextInfo
from tests.conftest import CheckpointMaker
from tests.payloads import generated

INFO = ModelInfo(
    name="m",
    path="/m",
    family="llama",
    tasks=("score", "generate"),
    executor="cpu",
    text=TextInfo(
        vocab_size=100,
        max_model_len=64,
        kv_cache_tokens=48,
        eos_token_ids=(0,),
        defaults=SamplingDefaults(temperature=0.6, top_k=20),
    ),
)


def settings(folder: Path, **changes: int) -> EngineSettings:
    return EngineSettings(model=str(folder), threads=1, kv_cache_tokens=4096, **changes)  # type: ignore[arg-type]


def request(client: EngineClient, name: str, tokens: int) -> EngineRequest:
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    return expand([5, 6, 7], params, client.info, request_id=name)[0]


def poisonous(request: EngineRequest) -> EngineRequest:
    """Replace the prompt by a token that expand() never lets through; it kills the engine."""
    payload = msgspec.structs.replace(generated(request), prompt=[10**6])
    return msgspec.structs.replace(request, payload=payload)


async def drain(stream: OutputStream) -> list[Output]:
    return [output async for output in stream]


def test_phases_are_timed_and_keys_stay_behind(checkpoint: CheckpointMaker) -> None:
    async def run() -> None:
        phases: dict[str, float] = {}
        folder = checkpoint("llama")
        all_settings = Settings(model=str(folder), threads=1, api_key=("secret",))
        client = await EngineClient.start(
            all_settings, str(folder), max_queue=1, on_phase=phases.__setitem__
        )
        try:
            assert type(client.fleet.settings) is EngineSettings
            assert list(phases) == ["spawn", "import", "load", "warm-up", "ready"]
            assert all(seconds >= 0 for seconds in phases.values())
            assert client.info.phases == phases
            assert phases["ready"] == pytest.approx(sum(phases.values()) - phases["ready"])
        finally:
            await client.close()
        with pytest.raises(EngineNotReady):
            client.submit(request(client, "late", 1))

    asyncio.run(run())


def test_the_queue_is_bounded_and_admitted_requests_are_not_affected(
    checkpoint: CheckpointMaker,
) -> None:
    async def run() -> None:
        folder = checkpoint("llama")
        client = await EngineClient.start(settings(folder, max_running=2), str(folder), max_queue=2)
        try:
            streams = client.submit_all([request(client, f"r{i}", 60) for i in range(4)])
            with pytest.raises(QueueFull) as refused:
                client.submit(request(client, "r9", 1))
            assert 1.0 <= refused.value.retry_after <= 60.0
            results = await asyncio.gather(*map(drain, streams))
            assert [sum(len(o.tokens) for o in r) for r in results] == [60] * 4
            # All or none are accepted: three do not fit after two.
            two = client.submit_all([request(client, f"s{i}", 60) for i in range(2)])
            with pytest.raises(QueueFull):
                client.submit_all([request(client, f"t{i}", 1) for i in range(3)])
            with pytest.raises(Conflict, match="a request with the id 's0-0' is unfinished"):
                client.submit(request(client, "s0", 1))
            with pytest.raises(Conflict, match="a request with the id 't0-0' is unfinished"):
                client.submit_all([request(client, "t0", 1)] * 2)
            assert client.in_flight == 2
            results = await asyncio.gather(*map(drain, two))
            assert [sum(len(o.tokens) for o in r) for r in results] == [60] * 2
        finally:
            await client.close()

    asyncio.run(run())


def test_cancelling_frees_the_blocks_of_waiting_and_running(checkpoint: CheckpointMaker) -> None:
    async def run() -> None:
        folder = checkpoint("llama")
        client = await EngineClient.start(settings(folder, max_running=2), str(folder), max_queue=4)
        try:
            streams = client.submit_all([request(client, f"r{i}", 400) for i in range(4)])
            await anext(streams[0])
            assert client.stats.running > 0
            for stream in streams:
                stream.cancel()
            assert client.in_flight == 0
            while client.stats.running or client.stats.waiting or client.stats.kv_used_blocks:
                await asyncio.sleep(0.01)
            assert [await drain(stream) for stream in streams[1:]] == [[], [], []]
            # One step, not 400: the engine stopped at once.
            assert client.stats.steps < 300
        finally:
            await client.close()

    asyncio.run(run())


def test_a_request_that_crashes_the_engine_fails_alone(checkpoint: CheckpointMaker) -> None:
    async def run() -> None:
        folder = checkpoint("llama")
        client = await EngineClient.start(settings(folder), str(folder), max_queue=4)
        try:
            calm = await asyncio.gather(
                *(drain(client.submit(request(client, f"c{i}", 80 + i))) for i in range(3))
            )
            streams = [client.submit(request(client, f"r{i}", 80 + i)) for i in range(3)]
            begun = await anext(streams[0])
            poison = poisonous(request(client, "poison", 5))
            bad = client.submit(poison)
            last = (await drain(bad))[-1]
            assert last.finish_reason == "error"
            assert last.error is not None
            assert "crashed" in last.error
            results = await asyncio.gather(*map(drain, streams))
            assert client.restarts == 2
            after = await drain(client.submit(request(client, "after", 4)))
            assert sum(len(o.tokens) for o in after) == 4
        finally:
            await client.close()
        texts = [[t for o in outputs for t in o.tokens] for outputs in calm]
        again = [[t for o in outputs for t in o.tokens] for outputs in results]
        assert [begun.tokens + again[0], *again[1:]] == texts

    asyncio.run(run())


def test_disconnecting_from_a_dying_engine_fails_no_other_request(
    checkpoint: CheckpointMaker,
) -> None:
    """The client leaves while its request, which kills the engine, is retried, or just after."""

    async def run(wait_for_death: bool) -> None:
        folder = checkpoint("llama")
        client = await EngineClient.start(settings(folder), str(folder), max_queue=40)
        try:
            calm = client.submit(request(client, "calm", 150))
            await anext(calm)
            poison = poisonous(request(client, "poison", 5))
            bad = client.submit(poison)
            while client.fleet.replicas[0].requests.quarantine.retried != poison.id:
                await asyncio.sleep(0)
            while wait_for_death and client.engine_pids:
                await asyncio.sleep(0)
            bad.cancel()
            later = [client.submit(request(client, f"l{i}", 3)) for i in range(10)]
            outputs = await asyncio.gather(drain(calm), *map(drain, later))
            assert [r[-1].finish_reason for r in outputs] == ["length"] * 11
            assert client.state == "ready"
        finally:
            await client.close()

    asyncio.run(run(wait_for_death=False))
    asyncio.run(run(wait_for_death=True))


def test_submitting_while_the_engine_dies_loses_nothing(checkpoint: CheckpointMaker) -> None:
    async def run() -> None:
        folder = checkpoint("llama")
        client = await EngineClient.start(settings(folder), str(folder), max_queue=5000)
        try:
            first = client.submit(request(client, "first", 100))
            await anext(first)
            os.kill(client.engine_pids[0], signal.SIGKILL)
            streams: list[OutputStream] = []
            while client.restarts == 0:
                if len(streams) < 500:
                    streams.append(client.submit(request(client, f"x{len(streams)}", 2)))
                await asyncio.sleep(0)
            results = await asyncio.gather(drain(first), *map(drain, streams))
            assert {r[-1].finish_reason for r in results} == {"length"}
            assert client.in_flight == 0
        finally:
            await client.close()

    asyncio.run(run())


def test_the_engine_does_not_get_the_keys(
    checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GALLEY_API_KEY", "secret")

    async def run() -> dict[str, str]:
        folder = checkpoint("llama")
        client = await EngineClient.start(settings(folder), str(folder), max_queue=1)
        environment = psutil.Process(client.engine_pids[0]).environ()
        await client.close()
        return dict(environment)

    assert "secret" not in asyncio.run(run()).values()


def test_repeated_kills_of_the_engine_fail_no_stream(checkpoint: CheckpointMaker) -> None:
    """Repeated kills, each as soon as an engine is ready: the streams still complete their text."""

    async def run() -> None:
        folder = checkpoint("llama")
        client = await EngineClient.start(settings(folder), str(folder), max_queue=4)
        try:
            streams = [client.submit(request(client, f"r{i}", 200)) for i in range(4)]
            begun = await anext(streams[0])
            for _ in range(2):
                os.kill(client.engine_pids[0], signal.SIGKILL)
                while client.state == "ready":
                    await asyncio.sleep(0.01)
                await client.ready()
            results = await asyncio.gather(*map(drain, streams))
            lengths = [sum(len(o.tokens) for o in r) for r in results]
            assert lengths == [200 - len(begun.tokens), 200, 200, 200]
            assert {r[-1].finish_reason for r in results} == {"length"}
        finally:
            await client.close()

    asyncio.run(run())


def test_states_are_made_again_after_a_kill(checkpoint: CheckpointMaker) -> None:
    """A recurrent model: the delivered text continues as it would have without the kill."""

    async def run() -> None:
        folder = checkpoint("granite-hybrid")
        client = await EngineClient.start(settings(folder), str(folder), max_queue=4)
        try:
            wanted = [request(client, f"r{i}", 120) for i in range(3)]
            calm = await asyncio.gather(*(drain(client.submit(one)) for one in wanted))
            again = [msgspec.structs.replace(one, id=f"again-{one.id}") for one in wanted]
            streams = [client.submit(one) for one in again]
            begun = await anext(streams[0])
            os.kill(client.engine_pids[0], signal.SIGKILL)
            results = await asyncio.gather(*map(drain, streams))
            assert client.restarts == 1
            before, after = (
                [[t for o in r for t in o.tokens] for r in rs] for rs in (calm, results)
            )
            assert [begun.tokens + after[0], *after[1:]] == before
        finally:
            await client.close()

    asyncio.run(run())


def test_closing_ends_open_streams(checkpoint: CheckpointMaker) -> None:
    async def run() -> str | None:
        folder = checkpoint("llama")
        client = await EngineClient.start(settings(folder), str(folder), max_queue=1)
        stream = client.submit(request(client, "r", 400))
        await anext(stream)
        await client.close()
        return (await drain(stream))[-1].finish_reason

    assert asyncio.run(run()) == "abort"


def test_start_errors_keep_their_type(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint("llama"), broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])

    async def start(folder: Path, **changes: int) -> None:
        await EngineClient.start(settings(folder, **changes), str(folder), max_queue=1)

    with pytest.raises(ModelError, match=r"model\.safetensors"):
        asyncio.run(start(broken))
    with pytest.raises(SettingsError, match="max_model_len"):
        asyncio.run(start(checkpoint("llama"), max_model_len=10**6))


def test_defaults_come_from_the_model_and_choices_get_seeds() -> None:
    requests = expand([1, 2], SamplingParams(n=3, seed=-2), INFO, request_id="x")
    assert [request.id for request in requests] == ["x-0", "x-1", "x-2"]
    choices = [generated(request).sampling for request in requests]
    assert {c.temperature for c in choices} == {0.6}
    assert {c.top_k for c in choices} == {20}
    assert {c.max_tokens for c in choices} == {46}
    assert choices[0].seed == 2**64 - 2
    assert len({c.seed for c in choices}) == 3
    assert choices[2].seed == choice_seed(2**64 - 2, 2)
    unseeded = [
        generated(expand([1], SamplingParams(), INFO, request_id="x")[0]).sampling.seed
        for _ in range(2)
    ]
    assert unseeded[0] != unseeded[1]


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ([], {}, "prompt"),
        ([100], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([1] * 48, {}, "prompt"),
        ([1] * 40, {"max_tokens": 9}, "max_tokens"),
        ([1] * 40, {"min_tokens": 9}, "min_tokens"),
        ([1], {"logit_bias": {100: 1.0}}, "logit_bias"),
        ([1], {"stop_token_ids": (100,)}, "stop_token_ids"),
    ],
)
def test_requests_that_cannot_be_honored_name_the_field(
    prompt: list[int], params: dict[str, object], param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        expand(prompt, SamplingParams(**params), INFO, request_id="x")  # type: ignore[arg-type]
    assert caught.value.param == param


def test_a_full_context_can_be_scored_but_not_continued() -> None:
    scored = SamplingParams(max_tokens=0, prompt_logprobs=0)
    [request] = expand([1] * 48, scored, INFO, request_id="x")
    assert generated(request).sampling.max_tokens == 0
