"""Language models of other libraries behind a server: streams, cancels, refusals, and a killed engine."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import openai
import pytest

from tests.runtimes.ctranslate2_folders import make_decoder
from tests.runtimes.genai_folders import make_genai
from tests.runtimes.language_models import CONTEXT, EXACT, make_folder, make_gguf, random_ids
from tests.server.serving import Server, events, until

pytestmark = pytest.mark.xdist_group("text_runtimes")

PLAIN: Final = "/v1/completions"
TOKENS: Final = 90
STREAMS: Final = 32


class Library(NamedTuple):
    """A library: its module, a function that writes a model, options for float32, and what is refused."""

    module: str
    make: Callable[[Path], Path]
    options: str
    refused: dict[str, Any]


ENGINES: Final = {
    "openvino": Library(
        "openvino_genai",
        lambda folder: make_gguf(folder / "tiny.gguf"),
        EXACT,
        {"seed": 1, "logprobs": 1, "logit_bias": {"5": 1}},
    ),
    "llama.cpp": Library(
        "llama_cpp", lambda folder: make_gguf(folder / "tiny.gguf"), '{"kv_type": "f32"}', {}
    ),
    "ctranslate2": Library(
        "ctranslate2",
        lambda folder: make_decoder(folder / "tiny"),
        "",
        {"seed": 1, "logprobs": 1, "logit_bias": {"5": 1}, "presence_penalty": 1},
    ),
    "onnxruntime-genai": Library(
        "onnxruntime_genai",
        lambda folder: make_genai(folder / "tiny"),
        "",
        {"seed": 1, "logprobs": 1, "presence_penalty": 1},
    ),
    "vllm": Library(
        "vllm",
        lambda folder: make_folder(folder / "tiny"),
        '{"enforce_eager": true, "dtype": "float32"}',
        {"seed": 1},
    ),
    "tensorrt-llm": Library(
        "tensorrt_llm",
        lambda folder: make_folder(folder / "tiny"),
        "",
        {"seed": 1, "logprobs": 1, "logit_bias": {"5": 1}, "presence_penalty": 1},
    ),
}


class Engine:
    """A server with one of the engines, and what differs between them."""

    def __init__(self, server: Server, name: str, refused: dict[str, Any]) -> None:
        self.server = server
        self.name = name
        self.refused = refused


@pytest.fixture(scope="module", params=ENGINES)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    name, folder = request.param, tmp_path_factory.mktemp("runtimes")
    library = ENGINES[name]
    pytest.importorskip(library.module, reason=f"engine {name}")
    settings: dict[str, Any] = {"max_model_len": CONTEXT, "engine": name, "threads": 1}
    with Server(
        library.make(folder), folder / "log", engine_options=library.options, **settings
    ) as server:
        yield Engine(server, name, library.refused)


def body(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "prompt": random_ids(number, 6 + number),
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **changes,
    }


def streamed(
    server: Server, request: dict[str, Any], after: Callable[[], None] | None = None
) -> tuple[str, int, int]:
    """Return a stream's text, and the tokens of its prompt and output.

    ``after`` is called once, as soon as text has arrived: on a busy machine, one part may have all of it.
    """
    parts: list[dict[str, Any]] = []
    with server.client() as client, client.stream("POST", PLAIN, json=request) as answer:
        for event in events(answer):
            if event != "[DONE]":
                parts.append(json.loads(event))
            if after is not None:
                after()
                after = None
    text = "".join(choice["text"] for part in parts for choice in part["choices"])
    usage = parts[-1]["usage"]
    return text, usage["prompt_tokens"], usage["completion_tokens"]


def all_streams(
    server: Server, after: Callable[[], None] | None = None
) -> list[tuple[str, int, int]]:
    with ThreadPoolExecutor(STREAMS) as pool:
        return list(
            pool.map(
                lambda number: streamed(server, body(number), None if number else after),
                range(STREAMS),
            )
        )


def test_streams_at_once_and_a_killed_engine(engine: Engine) -> None:
    """Each of many streams is that of its request alone, even if the engine dies meanwhile."""
    server = engine.server
    alone = [streamed(server, body(number))[0] for number in range(4)]
    texts = all_streams(server)
    assert [text for text, *_ in texts[:4]] == alone
    assert [counts for _, *counts in texts] == [[6 + i, TOKENS] for i in range(STREAMS)]
    assert server.metrics()["galley_engine_restarts_total"] == 0
    killed = all_streams(server, lambda: server.children()[0].kill())
    assert killed == texts
    until(lambda: server.metrics()["galley_engine_restarts_total"] == 1)


def test_a_stop_string_ends_the_text(engine: Engine) -> None:
    whole, *_ = streamed(engine.server, body(1))
    stop = next(whole[at : at + 2] for at in range(8, 40) if "\ufffd" not in whole[at : at + 2])
    text, _, generated = streamed(engine.server, body(1, stop=stop))
    assert text == whole[: whole.index(stop)]
    assert generated < TOKENS
    until(lambda: engine.server.metrics()["galley_requests_running"] == 0)


def test_a_client_that_disconnects_frees_its_slot(engine: Engine) -> None:
    with (
        engine.server.client() as client,
        client.stream("POST", PLAIN, json=body(1, max_tokens=CONTEXT - 10)) as answer,
    ):
        next(events(answer))
    until(lambda: engine.server.metrics()["galley_requests_running"] == 0)


def test_a_conversation_is_answered(engine: Engine) -> None:
    answer = engine.server.openai().chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "the dog"}], max_tokens=5, n=2
    )
    assert len(answer.choices) == 2
    assert answer.usage is not None
    assert 2 <= answer.usage.completion_tokens <= 10


def test_the_list_of_models_has_what_is_refused(engine: Engine) -> None:
    client = engine.server.openai()
    [card] = client.models.list().data
    unsupported = card.model_dump()["unsupported_parameters"]
    assert card.model_dump()["engine"] == engine.name
    for name, value in engine.refused.items():
        assert name in unsupported
        with pytest.raises(openai.BadRequestError, match=f"{engine.name} does not support") as e:
            client.completions.create(model="tiny", prompt=[5, 6], **{name: value})
        assert e.value.param == name


def test_its_memory_is_printed_listed_and_measured(engine: Engine) -> None:
    server = engine.server
    [card] = server.openai().models.list().data
    if engine.name == "tensorrt-llm":
        assert card.model_dump()["memory"] is None
        return
    server.wait_for_log(r"tiny: \w+, context [\d,]+ tokens")
    server.wait_for_log(r"total +[\d.]+ \wiB  of [\d.]+ \wiB available")
    planned = server.metrics()
    parts = [
        planned[f"galley_planned_memory_bytes{{part={part}}}"]
        for part in ("weights", "kv", "buffers")
    ]
    assert card.model_dump()["memory"] == sum(parts) > 0


def test_metrics_count_tokens_and_batches(engine: Engine) -> None:
    before = engine.server.metrics()
    streamed(engine.server, body(2))
    after = engine.server.metrics()
    generated = "galley_generated_tokens_total"
    assert after[generated] - before[generated] == TOKENS
    assert after["galley_engine_steps_total"] > before["galley_engine_steps_total"]
