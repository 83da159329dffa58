"""Galley's own prompt lookup; it chooses the number of draft tokens itself."""

import time
from pathlib import Path
from typing import Any

from benchmarks.peers.protocol import Peer, main


class _Model:
    def __init__(self, folder: Path, variant: str, threads: int) -> None:
        from galley.llm.local import LocalEngine
        from galley.ops import background
        from galley.settings.engine import EngineSettings

        weight_dtype: Any = variant
        self._engine = LocalEngine(
            EngineSettings(
                model=str(folder),
                weight_dtype=weight_dtype,
                threads=threads,
                speculation="prompt",
                prefix_cache=False,
                kv_cache_tokens=4096,
            )
        )
        background.finish()

    def follow(self, prompt: list[int], tokens: int, draft_tokens: int) -> list[float]:
        from galley import SamplingParams
        from galley.service.requests import expand

        params = SamplingParams(
            temperature=0.0,
            max_tokens=tokens,
            ignore_eos=True,
            speculation="auto" if draft_tokens else "off",
        )
        began, made = 0.0, []
        for output in self._engine.run(expand(prompt, params, self._engine.info, request_id="one")):
            made += output.tokens
            began = began or time.perf_counter()
        return [time.perf_counter() - began, *map(float, made)]


PEER = Peer(name="galley_lookup", variants={4: ("int4",)}, load=_Model)

if __name__ == "__main__":
    main(PEER)
