"""infinity's engine in this process, with torch; it does its own batching and tokenization."""

import asyncio
from pathlib import Path
from typing import Any

from benchmarks.peers.embedding import Texts, Vectors, answer, text
from benchmarks.peers.protocol import Peer, main


class _Model:
    def __init__(self, folder: Path, variant: str, threads: int) -> None:
        import torch
        from infinity_emb import AsyncEmbeddingEngine, EngineArgs

        torch.set_num_threads(threads)
        self._loop = asyncio.new_event_loop()
        self._engine: Any = AsyncEmbeddingEngine.from_args(
            EngineArgs(
                model_name_or_path=str(folder),
                engine="torch",
                device="cpu",
                dtype=variant,
                model_warmup=False,
                bettertransformer=False,
                compile=False,
            )
        )
        self._loop.run_until_complete(self._engine.astart())

    def embed(self, texts: Texts) -> Vectors:
        future = self._engine.embed(sentences=[text(ids) for ids in texts])
        vectors: Vectors
        vectors, _ = self._loop.run_until_complete(future)
        return vectors


PEER = Peer(name="infinity", variants={32: ("float32",)}, load=_Model, answer=answer)

if __name__ == "__main__":
    main(PEER)
