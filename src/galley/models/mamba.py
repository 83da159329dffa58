"""Mamba-2 layers (arXiv:2405.21060), which replace most attention in Granite 4."""

import math
from dataclasses import dataclass

from galley.graph.trace import Buffer, Tracer
from galley.models.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """Describes the layers; sizes are in elements.

    Attributes:
        layers: for each layer, whether it is of this type; others have attention.
        heads, head_dim: number of heads of values, and columns of each.
        state: rows of a head's state, which has ``head_dim`` columns.
        conv: number of rows that the preceding convolution sees.
        conv_bias, bias: whether the convolution and the projections have biases.
    """

    layers: tuple[bool, ...]
    heads: int
    head_dim: int
    state: int
    conv: int
    conv_bias: bool
    bias: bool

    def describe(self, g: Tracer, h: Buffer, layer: str, *, eps: float) -> Buffer:
        """Describe the normed residual stream -> what the layer with name ``layer`` adds to it."""
        name, inner, state = f"{layer}.mamba", self.heads * self.head_dim, self.state

        def project(x: Buffer, role: str, width: int) -> Buffer:
            owner = f"{name}.{role}"
            return g.linear(
                x, f"{owner}.weight", width, bias=f"{owner}.bias" if self.bias else None
            )

        wide = project(h, "in_proj", 2 * inner + 2 * state + self.heads)
        gate = g.columns(wide, 0, inner)
        dt = g.columns(wide, wide.width - self.heads, self.heads)
        mixed = g.causal_conv(
            g.columns(wide, inner, inner + 2 * state),
            f"{name}.conv1d.weight",
            self.conv,
            bias=f"{name}.conv1d.bias" if self.conv_bias else None,
        )
        x, b, c = (
            g.columns(mixed, start, width)
            for start, width in ((0, inner), (inner, state), (inner + state, state))
        )
        gated = g.silu_mul(gate, g.ssm(x, b, c, dt, name))
        return project(g.rms_norm(gated, f"{name}.norm.weight", eps=eps), "out_proj", h.width)


def read_mamba(config: Fields, layers: tuple[bool, ...], hidden: int) -> Mamba:
    """Read the fields that begin with ``mamba_``.

    Raises:
        CheckpointError: a field is missing or wrong.
        UnsupportedModel: heads are in groups, time steps have limits, or heads do not fill the
            inner width.
    """
    config.only("mamba_n_groups", 1)
    # Infinity is not JSON: transformers writes it as Python does, or since version 5 as an object.
    config.only("time_step_limit", [0.0, math.inf], [0.0, {"__float__": "Infinity"}])
    heads = config.width("mamba_n_heads", 128)
    inner = hidden * config.count("mamba_expand", 2)
    if inner % heads:
        raise config.wrong("mamba_n_heads", f"a divisor of {inner}, mamba_expand * hidden_size")
    config.only("mamba_d_head", "auto", inner // heads)
    return Mamba(
        layers=layers,
        heads=heads,
        head_dim=inner // heads,
        state=config.width("mamba_d_state", 256),
        conv=config.count("mamba_d_conv", 4, least=2),
        conv_bias=config.flag("mamba_conv_bias", True),
        bias=config.flag("mamba_proj_bias", False),
    )
