"""Windows of audio across the process boundary, and through an engine's death."""

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import numpy as np
import pytest

from galley import SamplingParams
from galley.llm.local import LocalEngine
from galley.service.client import EngineClient
from galley.service.speech_requests import align_request, transcribe_requests
from galley.service.streams import OutputStream
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest, Output
from galley.types.audio import Alignment, EncoderInput, SpeechRules
from galley.types.model_info import ModelInfo
from tests.conftest import CheckpointMaker

PARAMS = SamplingParams(temperature=1.0, seed=7, max_tokens=60, ignore_eos=True, scores=True)
SEARCH = SamplingParams(temperature=0.0, max_tokens=60, num_beams=4)
RULES = SpeechRules(no_speech=(0, 208))


def settings_for(folder: Path) -> EngineSettings:
    return EngineSettings(model=str(folder), threads=1, kv_cache_tokens=2048, executor="cpu")


def requests_for(info: ModelInfo) -> list[EngineRequest]:
    requests = []
    for i in range(8):
        data = np.random.default_rng(i).uniform(-1, 1.5, (150, 80)).astype(np.float32).tobytes()
        params = SEARCH if i % 3 == 2 else msgspec.structs.replace(PARAMS, seed=i)
        name, prompt = f"r{i}", [201, 202, 206]
        window = EncoderInput(frames=150, mels=80, data=data)
        if i >= 6:
            text = [*prompt, 209, *range(10, 40), 200]
            requests.append(align_request(text, info, request_id=name, encoder_input=window))
            continue
        requests += transcribe_requests(
            prompt, params, info, request_id=name, encoder_input=window, rules=RULES
        )
    return requests


def heard(outputs: list[Output]) -> tuple[list[int], list[float], list[float], list[Alignment]]:
    """Return everything received: tokens, scores, no-speech probabilities and alignments."""
    tokens = [token for output in outputs for token in output.tokens]
    scores = [score for output in outputs for score in output.generated.scores or []]
    silences = [o.generated.no_speech_prob for o in outputs]
    known = [silence for silence in silences if silence is not None]
    return tokens, scores, known, [o.result for o in outputs if isinstance(o.result, Alignment)]


@pytest.mark.parametrize("kill", [False, True])
def test_an_engine_process_transcribes_like_the_local_one(
    kill: bool, checkpoint: CheckpointMaker
) -> None:
    folder = checkpoint("whisper")
    with LocalEngine(settings_for(folder)) as local:
        requests = requests_for(local.info)
        expected: dict[str, list[Output]] = {request.id: [] for request in requests}
        for output in local.run(requests):
            expected[output.request_id].append(output)

    async def run() -> list[list[Output]]:
        client = await EngineClient.start(settings_for(folder), str(folder), max_queue=8)
        try:
            assert client.info.speech is not None
            streams = client.submit_all(requests)
            first = [[await anext(streams[0])], *([] for _ in streams[1:])]
            if kill:
                os.kill(client.engine_pids[0], signal.SIGKILL)
            rest = await asyncio.gather(
                *(asyncio.wait_for(collect(stream), 120) for stream in streams)
            )
            assert client.restarts == int(kill)
            return [begin + end for begin, end in zip(first, rest, strict=True)]
        finally:
            await client.close()

    got = asyncio.run(run())
    assert [heard(o) for o in got] == [heard(o) for o in expected.values()]
    assert [(len(heard(o)[2]), len(heard(o)[3])) for o in got] == [(1, 0)] * 6 + [(0, 1)] * 2


async def collect(stream: OutputStream) -> list[Output]:
    return [output async for output in stream]
