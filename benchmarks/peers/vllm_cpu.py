"""vLLM's CPU backend with AMD's plug-in, on the unconverted checkpoint, in a single process."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.protocol import Peer, main


class _Model:
    def __init__(self, folder: Path, variant: str, threads: int) -> None:
        cpus = sorted(os.sched_getaffinity(0))[:threads]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cpus))
        # Otherwise it reserves one of two threads for its server.
        os.environ["OMP_NUM_THREADS"] = str(threads)
        import vllm

        self._vllm: Any = vllm
        self._engine = vllm.LLM(
            model=str(folder),
            dtype="bfloat16",
            max_model_len=2048,
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            enable_prefix_caching=False,
        ).llm_engine
        self._requests = 0

    def prefill(self, prompt: list[int]) -> float:
        (request,) = self._add([prompt])
        began = time.perf_counter()
        while request not in self._step():
            pass
        seconds = time.perf_counter() - began
        self._end([request])
        return seconds

    def decode(self, prompts: Sequence[list[int]], steps: int) -> list[float]:
        requests = self._add(prompts)
        begun: set[str] = set()
        seconds: list[float] = []
        while len(seconds) < steps:
            together = len(begun) == len(requests)
            began = time.perf_counter()
            advanced = self._step()
            taken = time.perf_counter() - began
            begun |= advanced
            if together:
                if len(advanced) != len(requests):
                    raise RuntimeError(f"{len(advanced)} of {len(requests)} sequences decoded")
                seconds.append(taken)
        self._end(requests)
        return seconds

    def _add(self, prompts: Sequence[list[int]]) -> list[str]:
        params = self._vllm.SamplingParams(
            temperature=0.0, ignore_eos=True, max_tokens=1024, detokenize=False
        )
        requests = []
        for prompt in prompts:
            self._requests += 1
            requests.append(str(self._requests))
            self._engine.add_request(requests[-1], {"prompt_token_ids": prompt}, params)
        return requests

    def _step(self) -> set[str]:
        return {output.request_id for output in self._engine.step()}

    def _end(self, requests: list[str]) -> None:
        self._engine.abort_request(requests)
        while self._engine.has_unfinished_requests():
            self._engine.step()


PEER = Peer(
    name="vllm_cpu",
    variants={16: ("bf16",)},
    load=_Model,
    environment={
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "LD_PRELOAD": "{venv}/lib/libiomp5.so",  # as its manual advises
    },
)

if __name__ == "__main__":
    main(PEER)
