"""What a peer does, and the JSON lines that control its process.

A peer's module runs in that peer's own environment (``python -m benchmarks.peers.NAME``), and is imported
by the runner for its constants. So it imports the peer's packages inside functions only, and this
module imports the standard library only.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO


class Model(Protocol):
    """A loaded language model. Greedy, no prefix cache, no early end of a sequence."""

    def prefill(self, prompt: list[int]) -> float:
        """Return the seconds from a prompt of token ids to its first token."""
        ...

    def decode(self, prompts: Sequence[list[int]], steps: int) -> list[float]:
        """Return the seconds of each of ``steps`` steps in which all sequences decode one token."""
        ...


class Drafter(Protocol):
    """A loaded language model that drafts tokens by its own prompt lookup."""

    def follow(self, prompt: list[int], tokens: int, draft_tokens: int) -> list[float]:
        """Return the seconds from the first to the last of ``tokens``, decoded greedily, and the tokens.

        At most ``draft_tokens`` are verified in a step (0: none), unless the peer sets the limit.
        """
        ...


def answer_text(model: Any, request: Mapping[str, Any]) -> list[float]:
    """Return the seconds for ``{"prompts": lists of ids, "steps": count}``; 0 steps: prefill of one prompt.

    ``{"prompt": ids, "tokens": count, "draft_tokens": count}`` calls :meth:`Drafter.follow`.
    """
    if "draft_tokens" in request:
        seconds: list[float] = model.follow(**request)
        return seconds
    return _plain(model, request)


def _plain(model: Model, request: Mapping[str, Any]) -> list[float]:
    prompts, steps = request["prompts"], request["steps"]
    return model.decode(prompts, steps) if steps else [model.prefill(prompts[0])]


@dataclass(frozen=True)
class Peer:
    """How to install a peer, and which of its variants take part.

    Attributes:
        name: of its module, and of its requirements file and folder if it has its own.
        lives_with: the peer whose virtual environment it shares.
        variants: bits per weight -> the formats that compete.
        convert: (checkpoint, target, variant): writes ``target`` with the peer's own tools; None if it
            reads the checkpoint itself.
        suffix: file suffix of what ``convert`` writes.
        load: loads (model, variant, threads).
        answer: maps the loaded model and a request to seconds.
        pip_environment: environment variables for pip.
        unwanted: packages that are installed as dependencies and break the peer.
        environment: environment variables for its process; "{venv}" stands for its virtual environment.
    """

    name: str
    variants: Mapping[int, tuple[str, ...]]
    load: Callable[[Path, str, int], Any]
    answer: Callable[[Any, Mapping[str, Any]], list[float]] = answer_text
    convert: Callable[[Path, Path, str], None] | None = None
    suffix: str = ""
    pip_environment: Mapping[str, str] = field(default_factory=dict)
    unwanted: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    lives_with: str = ""

    @property
    def venv_name(self) -> str:
        """Return the name of the requirements file and of the virtual environment's folder."""
        return self.lives_with or self.name


def main(peer: Peer) -> None:
    """Run the peer's process: convert and exit, or load and answer one line for each line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=("convert", "serve"))
    parser.add_argument("variant")
    parser.add_argument("source", type=Path)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    answers = _take_stdout()
    if arguments.task == "convert":
        assert peer.convert
        peer.convert(arguments.source, arguments.target, arguments.variant)
        return
    model = peer.load(arguments.source, arguments.variant, arguments.threads)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        seconds = peer.answer(model, json.loads(line))
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)


def _take_stdout() -> TextIO:
    """Reserve standard output for the answers: whatever libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers
