"""Request parameters in combination: choices, ends, penalties, turns."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from galley import LLM, SamplingParams
from tests.checkpoints import EOS, make_checkpoint
from tests.server.conftest import CONTEXT
from tests.server.serving import Server, events, until

pytestmark = pytest.mark.xdist_group("default_server")

PLAIN = "/v1/completions"
PROMPT = "the cat sat on the"
SAMPLED: dict[str, Any] = {"temperature": 1, "seed": 11, "max_tokens": 24, "ignore_eos": True}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def complete(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.post(PLAIN, json={"model": "tiny", "prompt": PROMPT, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def texts(http: httpx.Client, **fields: Any) -> list[str]:
    return [choice["text"] for choice in complete(http, **fields)["choices"]]


def streamed(http: httpx.Client, **fields: Any) -> dict[int, tuple[str, str]]:
    """Return choice -> its text and finish reason."""
    body = {"model": "tiny", "prompt": PROMPT, "stream": True, **fields}
    text: dict[int, str] = {}
    ends: dict[int, str] = {}
    with http.stream("POST", PLAIN, json=body) as response:
        for event in events(response):
            for choice in json.loads(event)["choices"] if event != "[DONE]" else []:
                index = choice["index"]
                assert index not in ends
                text[index] = text.get(index, "") + choice["text"]
                if choice["finish_reason"]:
                    ends[index] = choice["finish_reason"]
    return {index: (text[index], ends[index]) for index in sorted(ends)}


def cut(text: str, stop: str) -> tuple[str, str]:
    before, found, _ = text.partition(stop)
    return before, "stop" if found else "length"


def test_each_choice_stops_at_its_own_stop_string(http: httpx.Client) -> None:
    whole = texts(http, n=4, **SAMPLED)
    stop = whole[2][6:8]
    expected = [cut(text, stop) for text in whole]
    assert expected[2][1] == "stop"
    answer = complete(http, n=4, stop=[stop, "never to be seen"], **SAMPLED)
    assert [(c["text"], c["finish_reason"]) for c in answer["choices"]] == expected
    assert answer["usage"]["completion_tokens"] < 4 * 24
    assert list(streamed(http, n=4, stop=stop, **SAMPLED).values()) == expected


@pytest.mark.parametrize("min_tokens", [0, 1, 5, 12, 24])
def test_stop_strings_are_not_looked_for_in_the_first_tokens(
    http: httpx.Client, min_tokens: int
) -> None:
    choice = complete(http, logprobs=0, **GREEDY)["choices"][0]
    offsets = [*choice["logprobs"]["text_offset"], len(choice["text"])]
    head, tail = choice["text"][: offsets[min_tokens]], choice["text"][offsets[min_tokens] :]
    stop = choice["text"][0]
    rest, reason = cut(tail, stop)
    assert streamed(http, stop=stop, min_tokens=min_tokens, **GREEDY) == {0: (head + rest, reason)}
    if min_tokens == 0:
        assert (head + rest, reason) == ("", "stop")


@pytest.mark.parametrize("min_tokens", [1, 5, 12])
def test_a_stop_string_that_is_complete_after_the_first_tokens_ends_the_text(
    http: httpx.Client, min_tokens: int
) -> None:
    """This includes a stop that begins within them, and only there."""
    choice = complete(http, logprobs=0, **GREEDY)["choices"][0]
    text, offsets = choice["text"], choice["logprobs"]["text_offset"]
    edge = offsets[min_tokens]
    for begin in range(max(0, edge - 3), edge + 1):
        stop = text[begin : edge + 2]
        found = next(
            i for i in range(len(text)) if text[i:].startswith(stop) and i + len(stop) > edge
        )
        expected = {0: (text[:found], "stop")}
        assert streamed(http, stop=stop, min_tokens=min_tokens, **GREEDY) == expected
        assert (
            complete(http, stop=[stop, "zzz"], min_tokens=min_tokens, **GREEDY)["choices"][0][
                "text"
            ]
            == (text[:found])
        )


def test_penalties_keep_a_seed_s_text_in_any_company(http: httpx.Client) -> None:
    penalized = SAMPLED | {"repetition_penalty": 1.7, "presence_penalty": 0.5}
    (alone,) = texts(http, **penalized)
    assert texts(http, **penalized) == [alone]
    assert texts(http, **SAMPLED) != [alone]
    answers: list[str] = []

    def ask(seed: int) -> None:
        (text,) = texts(http, **penalized | {"seed": seed})
        if seed == SAMPLED["seed"]:
            answers.append(text)

    company = [threading.Thread(target=ask, args=(seed,)) for seed in (11, 12, 11, 13, 11)]
    for thread in company:
        thread.start()
    for thread in company:
        thread.join()
    assert answers == [alone] * 3
    assert texts(http, n=2, **penalized)[0] == alone


@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_echoes_the_prompt_and_its_scores(http: httpx.Client, stream: bool) -> None:
    wanted = SAMPLED | {"n": 3, "echo": True, "logprobs": 1, "max_tokens": 6}
    plain = texts(http, **SAMPLED | {"n": 3, "max_tokens": 6})
    if stream:
        assert [text for text, _ in streamed(http, **wanted).values()] == [
            PROMPT + t for t in plain
        ]
        return
    choices = complete(http, prompt=[PROMPT, "the dog"], **wanted)["choices"]
    assert choices[3]["text"].startswith("the dog")
    assert choices[3]["logprobs"]["token_logprobs"] != choices[0]["logprobs"]["token_logprobs"]
    del choices[3:]
    assert [choice["text"] for choice in choices] == [PROMPT + text for text in plain]
    count = len(choices[0]["logprobs"]["tokens"]) - 6
    for choice in choices:
        logprobs = choice["logprobs"]
        assert "".join(logprobs["tokens"][:count]) == PROMPT
        assert logprobs["token_logprobs"][0] is None
        first = choices[0]["logprobs"]["token_logprobs"]
        assert logprobs["token_logprobs"][:count] == first[:count]
        assert len({len(values) for values in logprobs.values()}) == 1
        assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
        assert logprobs["text_offset"][count] == len(PROMPT)


# --- one at a time ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One sequence runs, three may wait; no amount of waiting makes up for a priority level."""
    sizes: dict[str, Any] = {"kv_cache_tokens": CONTEXT, "max_running": 1, "max_queue": 3}
    log = tmp_path_factory.mktemp("narrow") / "log"
    with Server(model, log, threads=1, priority_steps=10**6, **sizes) as running:
        yield running


class Waiting:
    """Keep requests waiting behind a long one; leaving the block cancels them."""

    def __init__(self, server: Server, *priorities: int) -> None:
        self._server = server
        self._priorities = priorities
        self.ids: dict[int, str] = {}

    def __enter__(self) -> "Waiting":
        self._client = self._server.client()
        body = {
            "model": "tiny",
            "prompt": PROMPT,
            "ignore_eos": True,
            "stream": True,
            "max_tokens": 9000,
        }
        self._blocker = self._client.stream("POST", PLAIN, json=body)
        self._events = events(self._blocker.__enter__())  # dropping it would close the stream
        next(self._events)
        self._threads = []
        for place, priority in enumerate(self._priorities):
            thread = threading.Thread(target=self._ask, args=(place, priority))
            thread.start()
            self._threads.append(thread)
            until(lambda: self._waiting() == len(self._threads))
        return self

    def _waiting(self) -> float:
        return self._server.metrics()["galley_requests_waiting"]

    def __exit__(self, *exc: object) -> None:
        self._blocker.__exit__(None, None, None)
        self._client.close()
        for thread in self._threads:
            thread.join()

    def _ask(self, place: int, priority: int) -> None:
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 3, "priority": priority}
        with self._server.client() as client:
            answer = client.post(PLAIN, json=body)
        assert answer.status_code == 200
        self.ids[place] = answer.headers["x-request-id"]


def test_a_lower_priority_number_overtakes(narrow: Server) -> None:
    with Waiting(narrow, 0, 1, -5) as waiting:
        pass
    # The log has a line for each finished request.
    until(lambda: all(f"id={name}" in narrow.log for name in waiting.ids.values()))
    log = narrow.log
    assert sorted(waiting.ids, key=lambda place: log.index(f"id={waiting.ids[place]}")) == [2, 0, 1]


def test_a_full_queue_states_when_to_retry(narrow: Server) -> None:
    with Waiting(narrow, 0, 0, 0) as waiting:
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1}
        answer = httpx.post(f"{narrow.url}{PLAIN}", json=body)
    assert answer.status_code == 429
    assert answer.headers["retry-after"].isdecimal()
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["code"] == "queue_full"
    assert len(waiting.ids) == 3  # the admitted request is unaffected


# --- the model's own defaults ---------------------------------------------------------------------


def test_generation_config_gives_the_defaults(
    model: Path, http: httpx.Client, tmp_path: Path
) -> None:
    prompt = [10, 11, 12]
    with LLM(model, threads=1, kv_cache_tokens=CONTEXT) as llm:
        greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        tokens = llm.generate([prompt], greedy)[0].token_ids
    end = tokens[6]
    length = tokens.index(end) + 1
    own = {"temperature": 0.6, "top_k": 5, "eos_token_id": [EOS, end]}
    (folder := tmp_path / "tiny").mkdir()
    make_checkpoint(folder, max_position_embeddings=CONTEXT, generation=own)
    settings: dict[str, Any] = {"kv_cache_tokens": CONTEXT, "threads": 1}
    with Server(folder, tmp_path / "log", **settings) as server, server.client() as other:
        stopped = complete(other, prompt=prompt, temperature=0, max_tokens=24)
        assert stopped["choices"][0]["finish_reason"] == "stop"
        assert stopped["usage"]["completion_tokens"] == length
        whole = texts(other, prompt=prompt, **GREEDY)
        assert whole == texts(http, prompt=prompt, **GREEDY)
        assert whole[0].startswith(stopped["choices"][0]["text"])

        def text(client: httpx.Client, **fields: Any) -> list[str]:
            return texts(client, seed=3, max_tokens=60, ignore_eos=True, **fields)

        default = text(other)
        assert default == text(http, temperature=0.6, top_k=5)
        assert default != text(other, temperature=1.0)
        assert default != text(other, top_k=0)
        assert text(other, temperature=1.0, top_k=0) == text(http)


def test_a_seed_of_minus_one_is_drawn_anew_for_each_request(http: httpx.Client) -> None:
    assert len({tuple(texts(http, **SAMPLED | {"seed": -1})) for _ in range(3)}) == 3
    assert len({tuple(texts(http, **SAMPLED)) for _ in range(2)}) == 1
