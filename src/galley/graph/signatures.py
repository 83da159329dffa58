"""The op vocabulary: what each op reads, and what it is told. Every executor implements all of it.

==============  ================================================================================
embed           token ids -> rows of ``weight`` [vocab, width]
linear          x [T, k] @ ``weight`` [n, k]^T (+ ``bias`` [n])
rms_norm        x * rsqrt(mean(x^2) + eps) * ``weight``, over each group of ``head_dim`` columns
                (all columns when head_dim is the width); arXiv:1910.07467
rope            rotates the two halves of each head by position * inv_freq, times ``scale``;
                arXiv:2104.09864
attention       q, k, v -> causal attention over the paged KV of ``layer``, written first;
                softmax(q k^T * scale) v; ``window`` > 0 limits keys to the last ``window``
silu_mul        silu(a) * b
add             a + b
select_rows     keeps the rows whose logits are wanted
==============  ================================================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Signature:
    """``inputs`` buffers read; ``weights`` required and ``optional`` roles; ``attrs`` names."""

    inputs: int
    weights: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    attrs: tuple[str, ...] = ()


SIGNATURES: Final[Mapping[str, Signature]] = {
    "embed": Signature(0, weights=frozenset({"weight"})),
    "linear": Signature(1, weights=frozenset({"weight"}), optional=frozenset({"bias"})),
    "rms_norm": Signature(1, weights=frozenset({"weight"}), attrs=("eps", "head_dim")),
    "rope": Signature(1, attrs=("head_dim", "inv_freq", "scale")),
    "attention": Signature(3, attrs=("layer", "heads", "kv_heads", "head_dim", "scale", "window")),
    "silu_mul": Signature(2),
    "add": Signature(2),
    "select_rows": Signature(1),
}
