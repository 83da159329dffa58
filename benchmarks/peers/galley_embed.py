"""Galley itself, on the unconverted checkpoint of an encoder."""

from pathlib import Path
from typing import Any

from benchmarks.peers.embedding import Texts, Vectors, answer
from benchmarks.peers.protocol import Peer, main


class _Model:
    def __init__(self, folder: Path, variant: str, threads: int) -> None:
        from galley import LLM

        weight_dtype: Any = variant
        self._llm = LLM(folder, weight_dtype=weight_dtype, threads=threads, weight_cache=False)

    def embed(self, texts: Texts) -> Vectors:
        return list(self._llm.embed(list(texts)))


PEER = Peer(
    name="galley_embed",
    variants={32: ("float32",), 16: ("bf16",), 8: ("int8",)},
    load=_Model,
    answer=answer,
)

if __name__ == "__main__":
    main(PEER)
