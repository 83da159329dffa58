"""Run llama.cpp on GGUF files, in a Python with llama-cpp-python; :mod:`benchmarks.gguf_peers` starts it.

    python -m benchmarks.gguf_llama JOB.json

The job has one of: ``quantize`` {source, target, type}; ``texts`` (a list, to tokenize with ``model``'s
vocabulary); ``windows`` (token ids) and ``prompts`` with ``steps``, with float32 keys and values unless
``defaults`` is true. Results go to ``out``, as JSON or NPZ.
"""

import ctypes
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

FILE_TYPES: Final = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 14,
    "Q5_K": 16,
    "Q6_K": 18,
    "IQ4_NL": 25,
    "IQ4_XS": 30,
    "BF16": 32,
}
"""``llama_ftype`` by the type of its matrices."""

MIXTURES: Final = {"Q4_K_M": 15, "Q5_K_M": 17}
"""``llama_ftype`` of files whose matrices have several types."""

CONTEXT: Final = 1024


class Llama:
    """A file loaded in llama.cpp.

    Keys and values are float32 and weights stay as they are in the file, unless ``defaults`` is true.
    """

    def __init__(self, file: str, *, vocabulary_only: bool = False, defaults: bool = False) -> None:
        import llama_cpp

        self._c = c = llama_cpp
        params = c.llama_model_default_params()
        params.vocab_only = vocabulary_only
        # With repacked weights 0.3.36 crashed on Q4_0 on a machine with AMX.
        params.use_extra_bufts = defaults
        self._model = c.llama_model_load_from_file(file.encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {file}")
        self._vocabulary = c.llama_model_get_vocab(self._model)
        self._tokens = c.llama_vocab_n_tokens(self._vocabulary)
        self._context = None
        if not vocabulary_only:
            wanted = c.llama_context_default_params()
            wanted.n_ctx = wanted.n_batch = wanted.n_ubatch = CONTEXT
            if not defaults:
                wanted.type_k = wanted.type_v = 0  # float32
            self._context = c.llama_init_from_model(self._model, wanted)
            self._batch = c.llama_batch_init(CONTEXT, 0, 1)

    def tokenize(self, text: str) -> list[int]:
        """Tokenize as a server does: tokens around texts are added, special ones are recognized."""
        raw = text.encode()
        room = (ctypes.c_int32 * (len(raw) + 8))()
        count = self._c.llama_tokenize(self._vocabulary, raw, len(raw), room, len(room), True, True)
        return list(room[:count])

    def logits(self, ids: Sequence[int], first: int = 0) -> Any:
        """Return [tokens, vocabulary]: the logits after each token; the first is at position ``first``."""
        import numpy as np

        batch = self._batch
        if first == 0:
            self._c.llama_memory_clear(self._c.llama_get_memory(self._context), True)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.logits[i] = token, first + i, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        if self._c.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        rows = [self._c.llama_get_logits_ith(self._context, i) for i in range(len(ids))]
        return np.stack([np.ctypeslib.as_array(row, (self._tokens,)).copy() for row in rows])

    def greedy(self, prompt: Sequence[int], steps: int) -> list[int]:
        """Return the likeliest tokens, one after another."""
        said = [int(self.logits(prompt)[-1].argmax())]
        while len(said) < steps:
            row = self.logits(said[-1:], len(prompt) + len(said) - 1)[-1]
            said.append(int(row.argmax()))
        return said


def quantize(source: str, target: str, type: str) -> None:
    """Run llama.cpp's own quantizer: all matrices of one type, or one of its mixtures."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = (FILE_TYPES | MIXTURES)[type]
    params.pure, params.allow_requantize = type in FILE_TYPES, True
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), params):
        raise RuntimeError(f"llama.cpp cannot quantize to {type}")


def main() -> None:
    """Do one job."""
    import llama_cpp
    import numpy as np

    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    job = json.loads(Path(sys.argv[1]).read_text())
    if "quantize" in job:
        quantize(**job["quantize"])
    elif "texts" in job:
        llama = Llama(job["model"], vocabulary_only=True)
        ids = [llama.tokenize(text) for text in job["texts"]]
        Path(job["out"]).write_text(json.dumps(ids))
    else:
        llama = Llama(job["model"], defaults=job.get("defaults", False))
        windows = {f"window {i}": llama.logits(w) for i, w in enumerate(job["windows"])}
        said = [llama.greedy(prompt, job["steps"]) for prompt in job["prompts"]]
        np.savez(job["out"], said=np.array(said), **windows)


if __name__ == "__main__":
    main()
