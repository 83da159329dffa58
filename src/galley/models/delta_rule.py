"""Layers of the gated delta rule (arXiv:2412.06464), which replace most attention in Qwen3-Next."""

from dataclasses import dataclass
from typing import Final

from galley.graph.trace import Buffer, Tracer
from galley.models.fields import Fields

_EPS: Final = 1e-6
"""Added to the squared norm of queries and keys; independent of the norms' epsilon in config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRule:
    """Describes the layers; sizes are in elements.

    Attributes:
        layers: for each layer, whether it is of this type; others have attention.
        key_heads, value_heads: number of heads of keys and queries, each shared by the same number
            of value heads, and number of value heads.
        key_dim, value_dim: columns of a head.
        conv: number of rows that the preceding convolution sees.
    """

    layers: tuple[bool, ...]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int

    def describe(self, g: Tracer, h: Buffer, layer: str, *, eps: float) -> Buffer:
        """Describe the normed residual stream -> what the layer with name ``layer`` adds to it."""
        name, share = f"{layer}.linear_attn", self.value_heads // self.key_heads
        # All parts of the projection for one key head are adjacent.
        parts = (self.key_dim, self.key_dim, share * self.value_dim, share * self.value_dim)
        stride = sum(parts)
        wide = g.linear(h, f"{name}.in_proj_qkvz.weight", self.key_heads * stride)
        q, k, v, z = (
            g.head_columns(wide, sum(parts[:i]), size, stride) for i, size in enumerate(parts)
        )
        gates = g.linear(h, f"{name}.in_proj_ba.weight", 2 * self.value_heads)
        b, a = (g.head_columns(gates, start, share, 2 * share) for start in (0, share))
        joined = g.join_heads(g.join_heads(q, k, 1), v, 1)
        mixed = g.causal_conv(joined, f"{name}.conv1d.weight", self.conv)
        q, k = (
            self._unit(g, g.columns(mixed, i * q.width, q.width), scale)
            for i, scale in ((0, self.key_dim**-0.5), (1, 1.0))
        )
        v = g.columns(mixed, 2 * q.width, v.width)
        y = g.delta_rule(q, k, v, a, b, name, groups=self.key_heads)
        y = g.rms_norm(y, f"{name}.norm.weight", eps=eps, head_dim=self.value_dim)
        return g.linear(g.silu_mul(z, y), f"{name}.out_proj.weight", h.width)

    def _unit(self, g: Tracer, x: Buffer, scale: float) -> Buffer:
        """Scale each head to length ``scale``.

        A head's RMS norm is its unit vector times sqrt(key_dim).
        """
        normed = g.rms_norm(x, None, eps=_EPS / self.key_dim, head_dim=self.key_dim)
        return g.scale(normed, scale * self.key_dim**-0.5)


def read_delta_rule(config: Fields, layers: tuple[bool, ...]) -> DeltaRule:
    """Read the fields that begin with ``linear_``.

    Raises:
        CheckpointError: a field is missing or wrong.
    """
    key_heads = config.width("linear_num_key_heads", 16)
    value_heads = config.width("linear_num_value_heads", 32)
    if value_heads % key_heads:
        raise config.wrong("linear_num_value_heads", f"a multiple of {key_heads} key heads")
    return DeltaRule(
        layers=layers,
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=config.width("linear_key_head_dim", 128),
        value_dim=config.width("linear_value_head_dim", 128),
        conv=config.count("linear_conv_kernel_dim", 4, least=2),
    )
