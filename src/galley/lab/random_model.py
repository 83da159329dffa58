"""Models of any shape with random weights: speed and memory do not depend on the values."""

from collections.abc import Iterator

import numpy as np

from galley.formats.values import bf16_bits
from galley.formats.weights import DENSE_KINDS, DenseWeight, TensorInfo, Weights
from galley.graph.program import Program
from galley.models.registry import build_program


class RandomWeights(Weights):
    """Tensors of a program, bfloat16: each is a slice of the same noise, which is generated once."""

    def __init__(self, program: Program) -> None:
        self._shapes = dict(program.shapes)
        rng = np.random.default_rng(0)
        largest = max(int(np.prod(shape)) for shape in self._shapes.values())
        noise = rng.standard_normal(largest, dtype=np.float32) / np.float32(32)
        self._noise = bf16_bits(noise).view(np.uint8)

    def info(self, name: str) -> TensorInfo:
        """See :class:`Weights`."""
        return TensorInfo(self._shapes[name], DENSE_KINDS["BF16"])

    def __getitem__(self, name: str) -> DenseWeight:
        shape = self._shapes[name]
        return DenseWeight(name, "BF16", shape, self._noise[: 2 * int(np.prod(shape))])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


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
