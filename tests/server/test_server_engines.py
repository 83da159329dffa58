"""A third-party engine from a package, behind the same server, service and library."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from galley import LLM, SamplingParams
from galley.errors import SettingsError
from galley.service.protocol import ENGINES
from tests.server import toy_engine
from tests.server.packages import install
from tests.server.serving import Server, events, until

pytestmark = pytest.mark.xdist_group("server_engines")

PLAIN = "/v1/completions"
IDS = [10, 11, 12, 13, 14]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    """``PYTHONPATH`` of an installed package with the engine ``echo``."""
    return install(tmp_path_factory.mktemp("packages"), toy_engine, "echo")


@pytest.fixture(scope="module")
def server(model: Path, package: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(model, log, engine="echo", environ={"PYTHONPATH": package}) as running:
        yield running


def echoed(tokens: int, ids: list[int] = IDS) -> list[int]:
    return [ids[place % len(ids)] for place in range(tokens)]


def text_of(server: Server, ids: list[int]) -> str:
    body = {"tokens": ids}
    text: str = httpx.post(f"{server.url}/detokenize", json=body).json()["prompt"]
    return text


def streamed(server: Server, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the text of a streamed completion, and its last event."""
    parts: list[dict[str, Any]] = []
    with server.client() as client, client.stream("POST", PLAIN, json=body) as answer:
        parts += [json.loads(event) for event in events(answer) if event != "[DONE]"]
    text = "".join(choice["text"] for part in parts for choice in part["choices"])
    return text, parts[-1]


def test_completions_and_usage(server: Server) -> None:
    answer = server.openai().completions.create(model="tiny", prompt=IDS, max_tokens=14, n=2)
    assert [choice.text for choice in answer.choices] == [text_of(server, echoed(14))] * 2
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 28)


def test_chat_answers_with_the_conversation(server: Server) -> None:
    messages: list[Any] = [{"role": "user", "content": "the dog"}]
    count = httpx.post(f"{server.url}/tokenize", json={"messages": messages}).json()["count"]
    answer = server.openai().chat.completions.create(
        model="tiny", messages=messages, max_tokens=count
    )
    assert "the dog" in (answer.choices[0].message.content or "")


def test_a_stream_of_several_tokens_an_output(server: Server) -> None:
    """Two or three tokens arrive at once: text, stop strings and usage count each of them."""
    body = {"model": "tiny", "prompt": IDS, "max_tokens": 50, "stream": True}
    options = {"stream_options": {"include_usage": True}}
    whole, last = streamed(server, body | options)
    assert whole == text_of(server, echoed(50))
    assert last["usage"]["completion_tokens"] == 50
    stop = whole[7:10]
    stopped, last = streamed(server, body | options | {"stop": stop})
    assert stopped == whole[: whole.index(stop)]
    assert last["usage"]["completion_tokens"] <= 50


def test_what_the_model_does_not_do_is_refused(server: Server) -> None:
    client = server.openai()
    with pytest.raises(openai.BadRequestError, match="'tiny' cannot transcribe; it can generate"):
        client.audio.transcriptions.create(model="tiny", file=("a.wav", b""))
    with pytest.raises(openai.BadRequestError, match="cannot score; it can generate") as error:
        client.completions.create(model="tiny", prompt=IDS, echo=True, logprobs=1, max_tokens=1)
    assert error.value.param == "prompt_logprobs"


def test_metrics_before_and_after(model: Path, package: str, tmp_path: Path) -> None:
    with Server(model, tmp_path / "log", engine="echo", environ={"PYTHONPATH": package}) as server:
        before = server.metrics()
        assert before["galley_kv_blocks{state=free}"] == 7
        server.openai().completions.create(model="tiny", prompt=IDS, max_tokens=14)
        after = server.metrics()
    assert after["galley_generated_tokens_total"] == 14
    assert after["galley_decode_tokens_total"] == 14
    assert after["galley_engine_steps_total"] == 5
    per_token = f"galley_time_per_output_token_seconds_count{{endpoint={PLAIN}}}"
    assert after[per_token] == 1
    assert "galley_startup_phase_seconds{phase=echo}" in after


def test_an_abort_reaches_the_engine(server: Server) -> None:
    body = {"model": "tiny", "prompt": IDS, "stream": True}
    with server.client() as client, client.stream("POST", PLAIN, json=body) as answer:
        data = events(answer)
        next(data)
        until(lambda: server.metrics()["galley_requests_running"] == 1)
    until(lambda: server.metrics()["galley_requests_running"] == 0)


def test_a_killed_engine_is_replaced_and_the_stream_continues(server: Server) -> None:
    body = {"model": "tiny", "prompt": IDS, "max_tokens": 600, "stream": True}
    received: list[str] = []
    with server.client() as client, client.stream("POST", PLAIN, json=body) as answer:
        for event in events(answer):
            received.append(event)
            if len(received) == 5:
                server.children()[0].kill()
    assert received.pop() == "[DONE]"
    text = "".join(json.loads(event)["choices"][0]["text"] for event in received)
    assert text == text_of(server, echoed(600))
    assert server.metrics()["galley_engine_restarts_total"] == 1


def test_the_engine_is_closed_with_its_server(model: Path, package: str, tmp_path: Path) -> None:
    closed = model / "closed"
    closed.unlink(missing_ok=True)
    with Server(model, tmp_path / "log", engine="echo", environ={"PYTHONPATH": package}) as server:
        engine = psutil.Process(server.children()[0].pid)
        assert server.stop() == 0
        until(lambda: not engine.is_running())
    assert closed.exists()


def test_the_library_runs_it_too(model: Path, package: str) -> None:
    script = (
        "from galley import LLM, SamplingParams\n"
        f"with LLM({str(model)!r}, engine='echo') as llm:\n"
        f"    print(llm.generate([{IDS}], SamplingParams(max_tokens=12))[0].token_ids)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": package},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(answer.stdout) == echoed(12)


def test_an_engine_reads_its_own_options(model: Path, package: str) -> None:
    """The engine also refuses options that it does not have."""
    script = (
        "from galley import LLM, SamplingParams\n"
        "from galley.errors import SettingsError\n"
        "def load(options):\n"
        f"    return LLM({str(model)!r}, engine='echo', engine_options=options)\n"
        "with load('{\"tokens_per_step\": 12}') as llm:\n"
        f"    parts = list(llm.stream({IDS}, SamplingParams(max_tokens=12)))\n"
        "    print(len(parts[0].token_ids))\n"
        "for wrong in ('{\"tokens\": 12}', '{\"tokens_per_step\": 0}'):\n"
        "    try:\n"
        "        load(wrong)\n"
        "    except SettingsError as error:\n"
        "        print(error)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": package},
        capture_output=True,
        text=True,
        check=True,
    )
    first, unknown, small = answer.stdout.splitlines()
    assert first == "12"
    assert "engine 'echo'" in unknown
    assert "`tokens`" in unknown
    assert "`int` >= 1" in small


def test_the_native_engine_refuses_options_and_names_them(model: Path) -> None:
    with pytest.raises(SettingsError, match=r"engine 'native'.*`tokens_per_step`"):
        LLM(str(model), engine_options='{"tokens_per_step": 3}')


def test_unknown_engines_are_refused_with_what_there_is(
    model: Path, package: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="unknown engine 'other'; engines: native, onnx"):
        LLM(str(model), engine="other")
    with LLM(str(model), engine="native", threads=1, kv_cache_tokens=512) as llm:
        assert llm.generate([IDS], SamplingParams(max_tokens=1))
    broken = tmp_path / "broken"
    broken.mkdir()
    path = install(broken, toy_engine, "echo")
    (broken / "echo_engine.py").write_text("import a_missing_package")
    for name, environ, says in (
        (
            "other",
            package,
            f"unknown engine 'other'; engines: {', '.join(ENGINES)}, echo",
        ),
        ("echo", path, "engine 'echo' .* cannot be imported: No module named 'a_missing_package'"),
    ):
        log = tmp_path / f"{name}.log"
        settings: Any = {"engine": name, "environ": {"PYTHONPATH": environ}, "wait": False}
        with Server(model, log, **settings) as server:
            server.wait_for_log(f"cannot start: {says}")
            assert server.process.wait(30) == 1
