"""Requests run on an engine in this process, with the times of their tokens."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from galley.engine.engine import Engine
from galley.errors import EngineError
from galley.service.requests import expand
from galley.types import EngineRequest, SamplingParams


@dataclass(slots=True)
class Timed:
    """One request.

    Attributes:
        arrived: when it was added.
        tokens: when each of its tokens was there, from the same clock.
    """

    arrived: float
    tokens: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.tokens[0] - self.arrived

    @property
    def latency(self) -> float:
        """Seconds to the last token."""
        return self.tokens[-1] - self.arrived

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens."""
        return [b - a for a, b in zip(self.tokens, self.tokens[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Driven:
    """A run: all requests in the order in which they were given, and the seconds that it took."""

    requests: list[Timed]
    seconds: float

    @property
    def tokens(self) -> int:
        """Generated tokens."""
        return sum(len(request.tokens) for request in self.requests)

    @property
    def rate(self) -> float:
        """Generated tokens a second."""
        return self.tokens / self.seconds


def greedy(
    engine: Engine, prompts: Sequence[list[int]], outputs: Sequence[int]
) -> list[EngineRequest]:
    """Return requests of exactly this many tokens each, the likeliest ones."""
    return [
        expand(
            prompt,
            SamplingParams(temperature=0.0, ignore_eos=True, seed=0, max_tokens=tokens),
            engine.info,
            request_id=uuid.uuid4().hex,
        )[0]
        for prompt, tokens in zip(prompts, outputs, strict=True)
    ]


def drive(
    engine: Engine,
    requests: Sequence[EngineRequest],
    arrivals: Sequence[float] = (),
    on_step: Callable[[], None] = lambda: None,
) -> Driven:
    """Run requests to their end.

    Args:
        engine: without other requests.
        requests: different ids.
        arrivals: seconds after the start at which each is added, ascending; empty: all at once.
        on_step: called after each step.

    Raises:
        EngineError: a request failed.
    """
    times = list(arrivals) or [0.0] * len(requests)
    timed: dict[str, Timed] = {}
    began = time.perf_counter()
    added = 0
    while added < len(requests) or engine.has_work:
        now = time.perf_counter()
        while added < len(requests) and began + times[added] <= now:
            engine.add(requests[added])
            timed[requests[added].id] = Timed(began + times[added])
            added += 1
        if not engine.has_work:
            time.sleep(max(0.0, began + times[added] - time.perf_counter()))
            continue
        outputs = engine.step()
        now = time.perf_counter()
        for output in outputs:
            if output.error:
                raise EngineError(f"a request of the measurement failed: {output.error}")
            timed[output.request_id].tokens += [now] * len(output.tokens)
        on_step()
    return Driven([timed[request.id] for request in requests], time.perf_counter() - began)
