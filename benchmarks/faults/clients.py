"""Clients that know the expected answers and record the outcome of each of their requests."""

import asyncio
import json
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from benchmarks.faults.schedule import BAD, Ask, asks

PATH: Final = "/v1/completions"
REFUSALS: Final = (429, 503)
"""Statuses with ``Retry-After``."""
LONGEST_RETRY: Final = 2.0
"""Seconds; a client that waits longer puts no load on the server."""
SLOW_CHOICES: Final = 4
"""``n`` of a slow reader, so that its answer exceeds the socket buffers."""
REQUEST_SECONDS: Final = 120.0
"""A request that has not ended after this time counts as lost."""


@dataclass(frozen=True)
class Prompt:
    """A request and its expected text."""

    body: dict[str, Any]
    text: str


@dataclass
class Record:
    """What happened to the requests of all clients.

    Attributes:
        outcomes: number of requests by outcome: ``complete``, ``refused``, ``refused as bad``, ``gave up``
            (the client disconnected), ``cut off`` (the server disconnected a slow reader).
        lost: what went wrong with each other request.
        compared: number of texts compared with the expected ones, partial texts included.
        slow: number of slowly read streams, whether cut off or not.
        resumed: number of complete streams whose engine died between their first and last token.
        kills: times of the engine's deaths, on the monotonic clock.
        refusal_seconds: seconds from each refused request to its answer.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    compared: int = 0
    slow: int = 0
    resumed: int = 0
    kills: list[float] = field(default_factory=list)
    refusal_seconds: list[float] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """Return the number of requests that have ended."""
        return self.outcomes.total() + len(self.lost)


class Lost(Exception):
    """A request ended with an outcome that is not allowed."""


def connect(url: str, *, slow: bool = False) -> httpx.AsyncClient:
    """Open a pool of connections; slow readers read a few kilobytes at a time."""
    small = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)] if slow else None
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    transport = httpx.AsyncHTTPTransport(limits=limits, socket_options=small)
    return httpx.AsyncClient(base_url=url, transport=transport, timeout=REQUEST_SECONDS)


async def known(url: str, model: str, bodies: Sequence[dict[str, Any]]) -> list[Prompt]:
    """Collect the expected text of each prompt, one request at a time, before any fault is injected."""
    known = []
    async with connect(url) as http:
        for body in bodies:
            answer = await http.post(PATH, json={"model": model, **body})
            answer.raise_for_status()
            known.append(Prompt({"model": model, **body}, answer.json()["choices"][0]["text"]))
    return known


async def run_clients(
    url: str,
    prompts: Sequence[Prompt],
    record: Record,
    *,
    seed: int,
    count: int,
    until: float,
    longest_pause: float,
) -> None:
    """Run closed-loop clients until a monotonic time."""
    async with connect(url) as http, connect(url, slow=True) as slow:

        async def client(number: int) -> None:
            mine = asks(seed, number, len(prompts), longest_pause=longest_pause)
            while time.monotonic() < until:
                ask = next(mine)
                one = _Request(slow if ask.behavior == "slow" else http, record, prompts, ask)
                await one.run()

        await asyncio.gather(*(client(number) for number in range(count)))


class _Request:
    """One request of one client."""

    def __init__(
        self, http: httpx.AsyncClient, record: Record, prompts: Sequence[Prompt], ask: Ask
    ) -> None:
        self._http = http
        self._record = record
        self._ask = ask
        self._prompts = prompts
        self._began = time.monotonic()

    async def run(self) -> None:
        """Send the request and record its outcome."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                outcome = await self._bad() if self._ask.behavior == "bad" else await self._good()
        except (Lost, httpx.HTTPError, TimeoutError, ValueError, KeyError) as error:
            seconds = time.monotonic() - self._began
            self._record.lost.append(f"{self._ask}: {error!r} after {seconds:.1f} s")
        else:
            self._record.outcomes[outcome] += 1

    async def _bad(self) -> str:
        path, body, status = BAD[self._ask.prompt]
        model = self._prompts[0].body["model"].encode()
        answer = await self._http.post(
            path,
            content=body.replace(b"MODEL", model),
            headers={"Content-Type": "application/json"},
        )
        if answer.status_code in REFUSALS:
            return await self._refused(answer)
        if answer.status_code != status or "error" not in answer.json():
            raise Lost(f"{path} {body[:60]!r}: {answer.status_code} {answer.text[:200]}")
        return "refused as bad"

    async def _good(self) -> str:
        prompt = self._prompts[self._ask.prompt]
        if not self._ask.stream:
            answer = await self._http.post(PATH, json=prompt.body)
            if answer.status_code in REFUSALS:
                return await self._refused(answer)
            if answer.status_code != 200:
                raise Lost(f"{answer.status_code} {answer.text[:200]}")
            self._compare(answer.json()["choices"][0]["text"], prompt.text)
            return "complete"
        slow = self._ask.behavior == "slow" and prompt.body["temperature"] == 0
        choices = SLOW_CHOICES if slow else 1
        body = prompt.body | {"stream": True, "n": choices, **({"logprobs": 5} if slow else {})}
        async with self._http.stream("POST", PATH, json=body) as response:
            if response.status_code in REFUSALS:
                await response.aread()
                return await self._refused(response)
            if response.status_code != 200:
                raise Lost(f"{response.status_code} {(await response.aread())[:200]!r}")
            return await self._read(response, prompt, choices)

    async def _read(self, response: httpx.Response, prompt: Prompt, choices: int) -> str:
        texts, received, first = [""] * choices, 0, 0.0
        done = False
        try:
            async for line in response.aiter_lines():
                if not line:
                    continue
                if done := line == "data: [DONE]":
                    break
                self._add(texts, line)
                first = first or time.monotonic()
                received += 1
                if self._ask.behavior == "disconnect" and received > self._ask.after:
                    self._compare_beginning(texts, prompt.text)
                    return "gave up"
                if self._ask.behavior == "slow" and received == 1:
                    self._record.slow += 1
                    await asyncio.sleep(self._ask.pause)
        except httpx.TransportError:
            if self._ask.behavior != "slow":
                raise
            self._compare_beginning(texts, prompt.text)
            return "cut off"
        if not done:
            raise Lost(f"the stream ended without [DONE] after {received} events")
        for text in texts:
            self._compare(text, prompt.text)
        self._record.resumed += any(first < at for at in self._record.kills)
        return "complete"

    @staticmethod
    def _add(texts: list[str], line: str) -> None:
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            raise Lost(f"an error in the stream: {event['error']}")
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]

    def _compare(self, text: str, expected: str) -> None:
        self._record.compared += 1
        if text != expected:
            raise Lost(f"wrong text: {text!r} instead of {expected!r}")

    def _compare_beginning(self, texts: Sequence[str], expected: str) -> None:
        self._record.compared += len(texts)
        for text in texts:
            if not expected.startswith(text):
                raise Lost(f"wrong beginning: {text!r} of {expected!r}")

    async def _refused(self, answer: httpx.Response) -> str:
        self._record.refusal_seconds.append(time.monotonic() - self._began)
        seconds = float(answer.headers.get("retry-after", "nan"))
        if not seconds > 0 or "error" not in answer.json():
            raise Lost(f"an unclear refusal: {answer.status_code} {answer.text[:200]}")
        await asyncio.sleep(min(seconds, LONGEST_RETRY))
        return "refused"
