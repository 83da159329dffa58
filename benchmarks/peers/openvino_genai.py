"""OpenVINO GenAI: converted by optimum-cli, driven through its continuous batching step by step."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.protocol import Peer, main

_FORMATS: Final = {
    "int4": ("--weight-format", "int4", "--group-size", "128", "--sym"),
    "int8": ("--weight-format", "int8"),
    "fp16": ("--weight-format", "fp16"),
}


class _Model:
    def __init__(self, folder: Path, variant: str, threads: int) -> None:
        import openvino_genai

        self._genai = openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = 512
        scheduler.max_num_seqs = 64
        scheduler.cache_size = 1
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            folder, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self._requests = 0

    def prefill(self, prompt: list[int]) -> float:
        handles = self._add([prompt])
        began = time.perf_counter()
        while not handles[0].can_read():
            self._pipeline.step()
        seconds = time.perf_counter() - began
        self._end(handles)
        return seconds

    def decode(self, prompts: Sequence[list[int]], steps: int) -> list[float]:
        handles = self._add(prompts)
        begun: set[int] = set()
        seconds: list[float] = []
        while len(seconds) < steps:
            together = len(begun) == len(handles)
            began = time.perf_counter()
            self._pipeline.step()
            taken = time.perf_counter() - began
            ready = [i for i, handle in enumerate(handles) if handle.can_read()]
            for i in ready:
                handles[i].read()
            begun.update(ready)
            if together:
                if len(ready) != len(handles):
                    raise RuntimeError(f"{len(ready)} of {len(handles)} sequences decoded")
                seconds.append(taken)
        self._end(handles)
        return seconds

    def _add(self, prompts: Sequence[list[int]]) -> list[Any]:
        import numpy as np
        import openvino

        config = self._genai.GenerationConfig()
        config.max_new_tokens = 4096
        config.ignore_eos = True
        config.do_sample = False
        handles = []
        for prompt in prompts:
            self._requests += 1
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(self._pipeline.add_request(self._requests, ids, config))
        return handles

    def _end(self, handles: list[Any]) -> None:
        for handle in handles:
            handle.cancel()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()


def convert(checkpoint: Path, target: Path, variant: str) -> None:
    """Convert with optimum-cli, its own exporter and quantizer."""
    tool = Path(sys.executable).with_name("optimum-cli")
    task = ("--task", "text-generation-with-past")
    subprocess.run(
        [tool, "export", "openvino", "--model", checkpoint, *task, *_FORMATS[variant], target],
        check=True,
    )


PEER = Peer(
    name="openvino_genai",
    variants={4: ("int4",), 8: ("int8",), 16: ("fp16",)},
    load=_Model,
    convert=convert,
    # torchvision belongs to a different torch build; transformers fails when it tries to import it.
    unwanted=("torchvision",),
)

if __name__ == "__main__":
    main(PEER)
