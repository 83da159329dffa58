"""llama.cpp's embeddings through its C interface, several texts a batch."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.embedding import Texts, Vectors, answer
from benchmarks.peers.protocol import Peer, main

_FILE_TYPES: Final = {"F16": 1, "Q8_0": 7}
_BUDGETS: Final = (512, 2048)
"""Tokens of a batch; the fastest is used."""
_SEQUENCES: Final = 64


class _Model:
    def __init__(self, file: Path, variant: str, threads: int) -> None:
        import llama_cpp

        self._c = c = llama_cpp
        c.llama_backend_init()
        self._model = c.llama_model_load_from_file(
            str(file).encode(), c.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {file}")
        self._width = c.llama_model_n_embd(self._model)
        self._contexts = {budget: self._context(budget, threads) for budget in _BUDGETS}
        self._batch = c.llama_batch_init(max(_BUDGETS), 0, 1)

    def embed(self, texts: Texts) -> Vectors:
        if len(self._contexts) > 1 and len(texts) > _SEQUENCES // 2:
            taken = {}
            for budget in self._contexts:
                self._embed(texts[:4], budget)
                began = time.perf_counter()
                self._embed(texts, budget)
                taken[budget] = time.perf_counter() - began
            best = min(taken, key=taken.__getitem__)
            self._contexts = {best: self._contexts[best]}
        return self._embed(texts, next(iter(self._contexts)))

    def _context(self, budget: int, threads: int) -> Any:
        c = self._c
        params = c.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = budget
        params.n_seq_max = _SEQUENCES
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = threads
        params.embeddings = True
        params.pooling_type = c.LLAMA_POOLING_TYPE_MEAN
        context = c.llama_init_from_model(self._model, params)
        if not context:
            raise RuntimeError("llama.cpp cannot make a context")
        return context

    def _embed(self, texts: Texts, budget: int) -> Vectors:
        import numpy as np

        c, context, batch = self._c, self._contexts[budget], self._batch
        found: list[Any] = []
        for together in _packed(texts, budget):
            batch.n_tokens = sum(map(len, together))
            row = 0
            for sequence, ids in enumerate(together):
                for position, token in enumerate(ids):
                    batch.token[row], batch.pos[row], batch.logits[row] = token, position, True
                    batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
                    row += 1
            if c.llama_encode(context, batch):
                raise RuntimeError("llama_encode failed")
            for sequence in range(len(together)):
                pointer = c.llama_get_embeddings_seq(context, sequence)
                vector = np.ctypeslib.as_array(pointer, (self._width,))
                found.append(vector / np.linalg.norm(vector))
        return found


def _packed(texts: Texts, budget: int) -> Iterator[list[list[int]]]:
    """Batch the texts in order, as many as fit, as its own example does."""
    together: list[list[int]] = []
    for ids in texts:
        if together and (
            len(together) == _SEQUENCES or sum(map(len, together)) + len(ids) > budget
        ):
            yield together
            together = []
        together.append(ids)
    yield together


def write_gguf(checkpoint: Path, target: Path) -> None:
    """Write a float32 GGUF without a vocabulary."""
    import json

    import gguf
    from safetensors.numpy import load_file

    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(str(target), "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    for name, values in load_file(checkpoint / "model.safetensors").items():
        writer.add_tensor(str(names.get_name(name, (".weight", ".bias"))), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert(checkpoint: Path, target: Path, variant: str) -> None:
    """Convert with llama.cpp's own quantizer."""
    import llama_cpp

    if variant == "F32":
        write_gguf(checkpoint, target)
        return
    whole = target.with_suffix(".f32")
    write_gguf(checkpoint, whole)
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = _FILE_TYPES[variant]
    if llama_cpp.llama_model_quantize(str(whole).encode(), str(target).encode(), params):
        raise RuntimeError(f"llama.cpp cannot quantize to {variant}")
    whole.unlink()


PEER = Peer(
    name="llama_embed",
    variants={32: ("F32",), 16: ("F16",), 8: ("Q8_0",)},
    load=_Model,
    answer=answer,
    convert=convert,
    suffix=".gguf",
    lives_with="llama_cpp",
)

if __name__ == "__main__":
    main(PEER)
