"""OpenVINO GenAI's prompt lookup, compared with its plain continuous batching."""

import time
from pathlib import Path
from typing import Any

from benchmarks.peers.openvino_genai import convert
from benchmarks.peers.protocol import Peer, main


class _Model:
    def __init__(self, folder: Path, variant: str, threads: int) -> None:
        import openvino_genai

        self._genai = openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = 512
        scheduler.cache_size = 1
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": threads}
        make = openvino_genai.ContinuousBatchingPipeline
        self._plain = make(folder, scheduler, "CPU", properties)
        self._speculative = make(folder, scheduler, "CPU", {**properties, "prompt_lookup": True})
        self._requests = 0

    def follow(self, prompt: list[int], tokens: int, draft_tokens: int) -> list[float]:
        import numpy as np
        import openvino

        config: Any = self._genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.ignore_eos = True
        config.do_sample = False
        if draft_tokens:
            config.num_assistant_tokens = draft_tokens
            config.max_ngram_size = 2
        pipeline = self._speculative if draft_tokens else self._plain
        self._requests += 1
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        handle = pipeline.add_request(self._requests, ids, config)
        made: list[int] = []
        began = 0.0
        while pipeline.has_non_finished_requests():
            pipeline.step()
            while handle.can_read():
                for output in handle.read().values():
                    made += output.generated_ids
            if made and not began:
                began, first = time.perf_counter(), len(made)
        seconds = time.perf_counter() - began
        # Draft tokens may already come with the first token.
        return [seconds * (tokens - 1) / (len(made) - first), *map(float, made)]


PEER = Peer(
    name="openvino_lookup",
    variants={4: ("int4",)},
    load=_Model,
    convert=convert,
    lives_with="openvino_genai",
)

if __name__ == "__main__":
    main(PEER)
