"""The schedule of faults: all drawn from a seed, so that a run can be repeated."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

QUIET_SHARE: Final = 0.1
"""Nothing is injected at the end, so that blocks leaked by an engine show up in that engine."""

LONG_STALL: Final = (12.0, 15.0)
"""Seconds; shorter stalls end before the engine is considered hung."""

Kind = Literal["kill", "stall", "long stall"]
Behavior = Literal["read", "disconnect", "slow", "bad"]

_VOCABULARY: Final = (
    "the a dog cat house river sun moon bird tree walks sings runs under over green small"
)


@dataclass(frozen=True)
class Fault:
    """A fault of the engine process, ``at`` seconds after the start.

    A ``kill`` is SIGKILL; a stall is SIGSTOP and, ``seconds`` later, SIGCONT.
    """

    at: float
    kind: Kind
    seconds: float = 0.0


@dataclass(frozen=True)
class Ask:
    """The next action of a client.

    Attributes:
        behavior: ``read`` everything, ``disconnect`` after ``after`` events, be ``slow`` (read one event,
            nothing for ``pause`` seconds, then the rest), or send something ``bad``.
        prompt: index of the prompt, or of the bad request.
        stream: whether the answer is streamed; always for ``disconnect`` and ``slow``.
    """

    behavior: Behavior
    prompt: int
    stream: bool
    after: int = 0
    pause: float = 0.0


def faults(seed: int, seconds: float) -> list[Fault]:
    """Return kills and stalls of the engine, 4 s apart on average, none in the last tenth."""
    source = random.Random(f"faults {seed}")
    at, drawn = 0.0, []
    while (at := at + 1.5 + source.expovariate(1 / 2.5)) < (1 - QUIET_SHARE) * seconds:
        kind: Kind = source.choices(("kill", "stall", "long stall"), (60, 35, 5))[0]
        lengths = {"kill": (0.0, 0.0), "stall": (0.2, 3.0), "long stall": LONG_STALL}
        drawn.append(Fault(round(at, 3), kind, round(source.uniform(*lengths[kind]), 3)))
    return drawn


def asks(seed: int, client: int, prompts: int, *, longest_pause: float) -> Iterator[Ask]:
    """Yield the actions of one client, endlessly.

    Args:
        prompts: the number of prompts to choose from.
        longest_pause: seconds for which every fifth slow reader reads nothing; the others: up to 4.
    """
    source = random.Random(f"client {client} of {seed}")
    while True:
        behavior: Behavior = source.choices(("read", "disconnect", "slow", "bad"), (65, 15, 5, 15))[
            0
        ]
        if behavior == "bad":
            yield Ask("bad", source.randrange(len(BAD)), stream=False)
        else:
            yield Ask(
                behavior,
                source.randrange(prompts),
                stream=behavior != "read" or source.random() < 0.7,
                after=source.randrange(8),
                pause=longest_pause if source.random() < 0.2 else source.uniform(0.5, 4.0),
            )


def prompts(seed: int, count: int, longest: int) -> list[dict[str, Any]]:
    """Return request bodies without ``model``, greedy and seeded; answers are shorter than ``longest``."""
    source = random.Random(f"prompts {seed}")
    return [
        {
            "prompt": " ".join(source.choices(_VOCABULARY.split(), k=source.randrange(3, 60))),
            "max_tokens": source.randrange(4, longest),
            "ignore_eos": True,
            **({"temperature": 0} if number % 2 else {"temperature": 1.0, "seed": number}),
        }
        for number in range(count)
    ]


BAD: Final[tuple[tuple[str, bytes, int], ...]] = (
    ("/v1/completions", b"[]", 400),
    ("/v1/completions", b'{"model": "', 400),
    ("/v1/completions", b'{"model": "nobody", "prompt": "x"}', 404),
    ("/v1/completions", b'{"model": "MODEL", "prompt": ""}', 400),
    ("/v1/completions", b'{"model": "MODEL", "prompt": "x", "n": 1000000000}', 400),
    ("/v1/completions", b'{"model": "MODEL", "prompt": "x", "max_tokens": 1000000000}', 400),
    ("/v1/completions", b'{"model": "MODEL", "prompt": "' + b"the " * 100_000 + b'"}', 400),
    ("/v1/chat/completions", b'{"model": "MODEL", "messages": []}', 400),
    ("/v1/chat/completions", b'{"a":' * 3000 + b"1" + b"}" * 3000, 400),
    ("/v1/chat/completions", b'{"model": "MODEL", "messages": [{"role": "tool"}]}', 400),
    ("/v1/chat/completions", b"\xff\xfe", 400),
    ("/v1/nothing", b"{}", 404),
    ("/tokenize", b'{"prompt": NaN}', 400),
)
"""Path, body (MODEL stands for the model's name) and the expected status."""
