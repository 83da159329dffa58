"""llama.cpp through its C interface: the checkpoint is converted to GGUF and quantized by its own tool."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.protocol import Peer, main

_FILE_TYPES: Final = {"Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15}
_LARGEST_BATCH: Final = 512  # tokens; the default, at which prefill is fastest


class _Model:
    def __init__(self, file: Path, variant: str, threads: int) -> None:
        import llama_cpp

        self._c = llama_cpp
        self._threads = threads
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            str(file).encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {file}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self._model)
        )
        self._batch = llama_cpp.llama_batch_init(_LARGEST_BATCH, 0, 1)

    def prefill(self, prompt: list[int]) -> float:
        context = self._context(1, len(prompt))
        began = time.perf_counter()
        self._prompts(context, [prompt])
        seconds = time.perf_counter() - began
        self._c.llama_free(context)
        return seconds

    def decode(self, prompts: Sequence[list[int]], steps: int) -> list[float]:
        context = self._context(len(prompts), len(prompts[0]) + steps)
        tokens = self._prompts(context, prompts)
        seconds = []
        for step in range(steps):
            position = len(prompts[0]) + step
            began = time.perf_counter()
            tokens = self._run(
                context, [(t, position, sequence, True) for sequence, t in enumerate(tokens)]
            )
            seconds.append(time.perf_counter() - began)
        self._c.llama_free(context)
        return seconds

    def follow(self, prompt: list[int], tokens: int, draft_tokens: int) -> list[float]:
        """As in its examples: one batch of the last token and the draft tokens; wrong ones are removed."""
        import numpy as np
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        lookup = LlamaPromptLookupDecoding(num_pred_tokens=draft_tokens)
        context = self._context(1, len(prompt) + tokens + 64)
        memory = self._c.llama_get_memory(context)
        known = [*prompt, *self._prompts(context, [prompt])]
        began = time.perf_counter()
        while len(known) < len(prompt) + tokens:
            drafted = lookup(np.array(known, np.intc)).tolist() if draft_tokens else []
            rows = [(t, len(known) - 1 + i, 0, True) for i, t in enumerate([known[-1], *drafted])]
            for i, token in enumerate(self._run(context, rows)):
                known.append(token)
                if i == len(drafted) or drafted[i] != token:
                    break
            if drafted:
                self._c.llama_memory_seq_rm(memory, 0, len(known) - 1, -1)
        seconds = time.perf_counter() - began
        self._c.llama_free(context)
        return [seconds, *map(float, known[len(prompt) :])]

    def _context(self, sequences: int, tokens: int) -> Any:
        """Each sequence has its own cache, as in llama.cpp's batch benchmark."""
        params = self._c.llama_context_default_params()
        params.n_ctx = sequences * -(-tokens // 256) * 256
        params.n_batch = params.n_ubatch = _LARGEST_BATCH
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = self._threads
        context = self._c.llama_init_from_model(self._model, params)
        if not context:
            raise RuntimeError("llama.cpp cannot make a context")
        return context

    def _prompts(self, context: Any, prompts: Sequence[list[int]]) -> list[int]:
        """Return the first token after each prompt."""
        rows = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        tokens: list[int] = []
        for start in range(0, len(rows), _LARGEST_BATCH):
            tokens += self._run(context, rows[start : start + _LARGEST_BATCH])
        return tokens

    def _run(self, context: Any, rows: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """Map (token, position, sequence, whether its logits are needed) to the likeliest tokens."""
        import numpy as np

        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if self._c.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        wanted_rows = [i for i, row in enumerate(rows) if row[3]]
        return [
            int(
                np.argmax(
                    np.ctypeslib.as_array(
                        self._c.llama_get_logits_ith(context, i), (self._vocab_size,)
                    )
                )
            )
            for i in wanted_rows
        ]


def convert(checkpoint: Path, target: Path, variant: str) -> None:
    """Write a bfloat16 GGUF once, next to the others, then run llama.cpp's quantizer."""
    import llama_cpp

    from benchmarks.peers.gguf_file import write_gguf

    if variant == "BF16":
        write_gguf(checkpoint, target)
        return
    whole = target.with_name("BF16.gguf")
    if not whole.exists():
        part = whole.with_suffix(".part")
        write_gguf(checkpoint, part)
        part.rename(whole)
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = _FILE_TYPES[variant]
    if llama_cpp.llama_model_quantize(str(whole).encode(), str(target).encode(), params):
        raise RuntimeError(f"llama.cpp cannot quantize to {variant}")


PEER = Peer(
    name="llama_cpp",
    variants={4: ("Q4_0", "Q4_K_M"), 8: ("Q8_0",), 16: ("BF16",)},
    load=_Model,
    convert=convert,
    suffix=".gguf",
    pip_environment={"CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"},
)

if __name__ == "__main__":
    main(PEER)
