"""Galley itself, on the unconverted checkpoint."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.protocol import Peer, main


class _Model:
    def __init__(self, folder: Path, variant: str, threads: int) -> None:
        from galley.bench.engine import EngineBench
        from galley.settings.engine import EngineSettings

        weight_dtype: Any = variant
        self._bench = EngineBench(
            EngineSettings(
                model=str(folder), executor="cpu", weight_dtype=weight_dtype, threads=threads
            )
        )

    def prefill(self, prompt: list[int]) -> float:
        return sum(step.seconds for step in self._bench.prefill(prompt))

    def decode(self, prompts: Sequence[list[int]], steps: int) -> list[float]:
        return [step.seconds for step in self._bench.decode(prompts, steps)]


PEER = Peer(
    name="galley",
    variants={4: ("int4",), 8: ("int8",), 16: ("bf16",)},
    load=_Model,
)

if __name__ == "__main__":
    main(PEER)
