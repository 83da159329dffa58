"""The op vocabulary: what each op reads, and what it is told.

Models are described in these, and every executor implements all of them:

==============  ================================================================================
embed           token ids -> rows of ``weight`` [vocab, width]
linear          x [T, k] @ ``weight`` [n, k]^T (+ ``bias`` [n])
rms_norm        x * rsqrt(mean(x^2) + eps) * ``weight``, over each group of ``head_dim`` columns
                (all columns when head_dim is the width); arXiv:1910.07467
rope            rotates the two halves of each head by position * inv_freq, times ``scale``;
                arXiv:2104.09864
attention       q, k, v -> causal attention over the paged KV of ``layer``, written first;
                softmax(q k^T * scale) v; ``window`` > 0 limits keys to the last ``window``.
                q has heads * ``key_dim`` columns, the result heads * ``value_dim``
silu_mul        silu(a) * b
add             a + b
select_rows     keeps the rows whose logits are wanted
==============  ================================================================================

Speech models have these, too. A window is one stretch of audio; its rows are consecutive, and ops that look
beyond a row stay within it:

================  ==============================================================================
features          the windows' log-mel frames, one row each
neighbours        x [T, c] -> [ceil(T / stride), c * size] for each window: row r holds the ``size`` rows
                  around row r * stride, zeros beyond the window's ends; column j * size + t is column j of
                  row r * stride + t - size // 2. With the flattened [n, c, size] kernel of a convolution
                  as ``weight``, ``linear`` on it is that convolution
embed_positions   positions in the window, or of the tokens in their sequence -> rows of ``weight``
                  [positions, width]
layer_norm        (x - mean) * rsqrt(variance + eps) * ``weight`` + ``bias``; arXiv:1607.06450
gelu              x * normal distribution function of x, by erf; arXiv:1606.08415
window_attention  q, k, v -> softmax(q k^T * scale) v over all rows of the window
cross_kv          k, v -> into the paged KV of ``layer``, by the window's block table; no output
cross_attention   q -> softmax(q k^T * scale) v over the whole window that the sequence belongs to, as
                  cross_kv left it in ``layer``
cross_weights     q -> the weights softmax(q k^T * scale) that cross_attention would give to the window's
                  rows, of the heads ``chosen``; no output: they are the executor's result, there heads
                  ``first``, ``first`` + 1, ...
================  ==============================================================================

The rest is made of them by ``graph/prepare.py`` and ``graph/passes/``, for executors that run these:

=====================  =========================================================================
prepare                x as the linear layers that read it want it: bfloat16, or int8 with one
                       scale a row
columns                the columns of x from ``start`` on: a view, nothing moves
add_rms_norm           a + b -> (sum, rms_norm(sum))
rms_norm_prepare       prepare(rms_norm(x))
add_rms_norm_prepare   a + b -> (sum, prepare(rms_norm(sum)))
add_layer_norm         a + b -> (sum, layer_norm(sum))
layer_norm_prepare     prepare(layer_norm(x))
add_layer_norm_prepare a + b -> (sum, prepare(layer_norm(sum)))
silu_mul_prepare       prepare(silu_mul(a, b))
gelu_prepare           prepare(gelu(x))
rope_attention         q, k, v -> (rope(q), attention(rope(q), rope(k), v)); the turned keys go straight
                       into the cache
=====================  =========================================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Signature:
    """Counts of buffers; ``weights`` required and ``optional`` roles; ``attrs`` names."""

    inputs: int
    outputs: int = 1
    weights: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    attrs: tuple[str, ...] = ()


_WEIGHT: Final = frozenset({"weight"})
_WEIGHT_BIAS: Final = frozenset({"weight", "bias"})
_NORM: Final = ("eps", "head_dim")
_HEADS: Final = ("heads", "kv_heads", "key_dim", "value_dim", "scale")
_ATTENTION: Final = ("layer", *_HEADS, "window")

SIGNATURES: Final[Mapping[str, Signature]] = {
    "embed": Signature(0, weights=_WEIGHT),
    "linear": Signature(1, weights=_WEIGHT, optional=frozenset({"bias"})),
    "rms_norm": Signature(1, weights=_WEIGHT, attrs=_NORM),
    "rope": Signature(1, attrs=("head_dim", "inv_freq", "scale")),
    "attention": Signature(3, attrs=_ATTENTION),
    "silu_mul": Signature(2),
    "add": Signature(2),
    "select_rows": Signature(1),
    "features": Signature(0),
    "neighbours": Signature(1, attrs=("size", "stride")),
    "embed_positions": Signature(0, weights=_WEIGHT),
    "layer_norm": Signature(1, weights=_WEIGHT_BIAS, attrs=("eps",)),
    "gelu": Signature(1),
    "window_attention": Signature(3, attrs=_HEADS),
    "cross_kv": Signature(2, outputs=0, attrs=("layer", "kv_heads", "key_dim", "value_dim")),
    "cross_attention": Signature(1, attrs=("layer", *_HEADS)),
    "cross_weights": Signature(1, outputs=0, attrs=("layer", *_HEADS, "chosen", "first")),
    "prepare": Signature(1),
    "columns": Signature(1, attrs=("start",)),
    "add_rms_norm": Signature(2, outputs=2, weights=_WEIGHT, attrs=_NORM),
    "rms_norm_prepare": Signature(1, weights=_WEIGHT, attrs=_NORM),
    "add_rms_norm_prepare": Signature(2, outputs=2, weights=_WEIGHT, attrs=_NORM),
    "add_layer_norm": Signature(2, outputs=2, weights=_WEIGHT_BIAS, attrs=("eps",)),
    "layer_norm_prepare": Signature(1, weights=_WEIGHT_BIAS, attrs=("eps",)),
    "add_layer_norm_prepare": Signature(2, outputs=2, weights=_WEIGHT_BIAS, attrs=("eps",)),
    "silu_mul_prepare": Signature(2),
    "gelu_prepare": Signature(1),
    "rope_attention": Signature(3, outputs=2, attrs=(*_ATTENTION, "inv_freq", "rope_scale")),
}
