"""Models of any shape with random weights, of which speed and memory are measured."""

import gc
import statistics
import time
from typing import Final

import numpy as np

from galley.bench.predicted import resident
from galley.graph.program import Program
from galley.lab.random_weights import RandomWeights
from galley.models.registry import build_program
from galley.ops.batch import Batch
from galley.ops.cpu import CpuExecutor
from galley.ops.executor import ExecutorOptions
from galley.ops.sampling import SamplingBatch
from galley.types import BLOCK_TOKENS

_MOST_SEQUENCES: Final = 16
_BLOCKS: Final = 8
"""Blocks of keys and values of a sequence."""


class RandomExecutor:
    """A random model whose steps are timed, without an engine.

    Attributes:
        bytes: by which the process grew with the packed weights.
    """

    def __init__(self, program: Program, weights: str, threads: int) -> None:
        """Pack the weights as this type, and measure the memory that this takes."""
        gc.collect()
        before = resident()
        options = ExecutorOptions(
            dtype="bfloat16",
            weight_dtype=weights,
            kv_dtype="bfloat16",
            device="cpu",
            threads=threads,
        )
        self._executor = CpuExecutor(program, RandomWeights(program), options)
        gc.collect()
        self.bytes: Final = max(1, resident() - before)
        self._executor.allocate_kv(_MOST_SEQUENCES * _BLOCKS, states=1)
        self._vocab = program.vocab_size
        self._random = np.random.default_rng(1)

    def decode_seconds(self, sequences: int, steps: int) -> float:
        """Return the median seconds of a step of random tokens, after a warm-up step."""
        self._step(sequences, 0)
        return statistics.median(self._step(sequences, 1 + i) for i in range(steps))

    def _step(self, sequences: int, position: int) -> float:
        rows = np.arange(sequences, dtype=np.int64)
        tables = tuple(
            np.arange(s * _BLOCKS, (s + 1) * _BLOCKS, dtype=np.int64) for s in range(sequences)
        )
        tokens = self._random.integers(self._vocab, size=sequences)
        positions = np.full(sequences, position, dtype=np.int64)
        starts = np.arange(sequences + 1, dtype=np.int64)
        batch = Batch(tokens, positions, starts, tables, rows)
        began = time.perf_counter()
        self._executor.execute(batch, SamplingBatch())
        return time.perf_counter() - began


def kv_growth(program: Program, kv_dtype: str, tokens: int, step: int, threads: int) -> list[int]:
    """Return by how many bytes the process grew after each step of a prompt's keys and values.

    Args:
        program: with weights of bfloat16, which are random.
        kv_dtype: type of the keys and values.
        tokens: of the prompt, a multiple of ``step``.
        step: tokens of a step, a multiple of the block's.
        threads: of the executor.
    """
    options = ExecutorOptions(
        dtype="bfloat16", weight_dtype="bf16", kv_dtype=kv_dtype, device="cpu", threads=threads
    )
    executor = CpuExecutor(program, RandomWeights(program), options)
    executor.allocate_kv(tokens // BLOCK_TOKENS, states=1)
    table = np.arange(tokens // BLOCK_TOKENS, dtype=np.int64)
    before, grown = resident(), []
    for first in range(0, tokens, step):
        positions = np.arange(first, first + step, dtype=np.int64)
        starts = np.array([0, step], dtype=np.int64)
        batch = Batch(
            positions % program.vocab_size, positions, starts, (table,), np.array([step - 1])
        )
        executor.execute(batch, SamplingBatch())
        grown.append(resident() - before)
    return grown


def llama(
    *,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    hidden: int,
    inner: int,
    vocab: int,
    experts: tuple[int, int] | None = None,
) -> Program:
    """Return a Llama, or with ``experts`` a Mixtral: (experts in a layer, experts of a token)."""
    config = {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    if experts is not None:
        count, each = experts
        config |= {
            "model_type": "mixtral",
            "num_local_experts": count,
            "num_experts_per_tok": each,
        }
    return build_program(config)
