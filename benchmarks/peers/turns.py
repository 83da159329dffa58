"""The same named requests for every contender in turn, and their times in seconds."""

import importlib
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.peers.child import Child
from benchmarks.peers.install import PeerFailed, converted, install
from benchmarks.peers.protocol import Peer


@dataclass
class Turns:
    """The requests and their results.

    Attributes:
        requests: the requests, by their names in the table.
        seconds: contender -> request -> one for each round.
        failures: contender, or contender and request -> why it was left out.
    """

    requests: Mapping[str, Mapping[str, Any]]
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def median(self, contender: str, request: str) -> float | None:
        """Return the median seconds; None if the contender cannot do the work."""
        measured = self.seconds[contender][request]
        return statistics.median(measured) if measured else None

    def best_peer(self, request: str, among: Sequence[str] | None = None) -> str | None:
        """Return the fastest contender other than Galley, of all or of those named."""
        found = {
            name: seconds
            for name in self.seconds
            if not name.startswith("galley") and (among is None or name in among)
            if (seconds := self.median(name, request))
        }
        return min(found, key=found.__getitem__, default=None)

    def ratio(
        self, contender: str, request: str, among: Sequence[str] | None = None
    ) -> float | None:
        """Return how many times faster Galley is than the fastest peer."""
        mine, best = self.median(contender, request), self.best_peer(request, among)
        theirs = self.median(best, request) if best else None
        return theirs / mine if theirs and mine else None

    def prepare(
        self,
        contenders: Sequence[tuple[str, str]],
        checkpoint: Path,
        *,
        threads: int,
        home: Path,
        stack: ExitStack,
        console: Console,
    ) -> dict[str, Child]:
        """Load every (module of :mod:`benchmarks.peers`, variant) that could be prepared.

        The others are listed as failures; ``stack`` ends the processes.
        """
        children = {}
        for module, variant in contenders:
            peer: Peer = importlib.import_module(f"benchmarks.peers.{module}").PEER
            name = f"{module} {variant}"
            console.print(f"{name}: install, convert, load")
            try:
                install(peer, home)
                model = converted(peer, variant, checkpoint, home)
                child = Child(peer, variant, model, threads, home)
            except PeerFailed as error:
                self.failures[name] = str(error)
                continue
            stack.callback(child.close)
            children[name] = child
            self.seconds[name] = {request: [] for request in self.requests}
        return children

    def round(self, children: Mapping[str, Child], *, warm_up: bool) -> None:
        """Run each request on all contenders in turn; one that fails a request is not given it again."""
        for request, body in self.requests.items():
            for name, child in children.items():
                if f"{name}, {request}" in self.failures:
                    continue
                try:
                    seconds = child.ask(body)
                except PeerFailed as error:
                    self.failures[f"{name}, {request}"] = str(error)
                    continue
                if not warm_up:
                    self.seconds[name][request] += seconds
