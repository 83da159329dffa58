"""Latent attention (MLA, arXiv:2405.04434): the latent of keys and values is cached.

The cache holds, for each token, one latent for all heads, followed by one rotated part of the keys:
together they are the key, and the latent alone is the value. The matrices that would make keys and
values instead map queries into the space of the latent, and the output of attention out of it
(:mod:`galley.formats.latent` names them).
"""

from dataclasses import dataclass
from typing import Final

from galley.graph.trace import Buffer, Tracer
from galley.models.fields import Fields
from galley.models.rope import KINDS, SECTIONS, Rope, multiplies, yarn_scale

_EPS: Final = 1e-6
"""Epsilon of the latents' norms; independent of that of other norms in config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Describes latent attention; sizes are in elements.

    Attributes:
        query: width of the latent from which queries are made; 0: they are made from the layer's
            input.
        width: width of the latent that is cached.
        keys, rotated, values: columns of a head: of its keys without position, of the rotated part,
            and of its values.
        bias: whether the projections into latents and out of the heads have biases.
    """

    query: int
    width: int
    keys: int
    rotated: int
    values: int
    bias: bool

    @property
    def query_columns(self) -> int:
        """Columns of a head's query."""
        return self.keys + self.rotated


def read_latent(config: Fields) -> Latent:
    """Read DeepSeek's fields.

    Raises:
        CheckpointError: a field is missing or wrong.
    """
    rotated = config.count("qk_rope_head_dim", 64)
    if rotated % 2:
        raise config.wrong("qk_rope_head_dim", "an even number")
    return Latent(
        query=0 if config.is_null("q_lora_rank") else config.width("q_lora_rank", 1536),
        width=config.width("kv_lora_rank", 512),
        keys=config.width("qk_nope_head_dim", 128),
        rotated=rotated,
        values=config.width("v_head_dim", 128),
        bias=config.flag("attention_bias", False),
    )


def attention_scale(config: Fields, latent: Latent) -> float:
    """Return the scale of q k^T, which YaRN's ``mscale_all_dim`` increases."""
    scale: float = latent.query_columns**-0.5
    rope = config.section(*SECTIONS)
    kind = rope.choice(("rope_type", "type"), KINDS, default="default")
    if kind != "default" and multiplies(rope, "mscale_all_dim"):
        scale *= yarn_scale(rope.number("factor"), rope.number("mscale_all_dim")) ** 2
    return scale


def describe_latent(
    g: Tracer,
    m: Latent,
    h: Buffer,
    name: str,
    *,
    heads: int,
    hidden: int,
    rope: Rope,
    scale: float,
) -> Buffer:
    """Describe the normed residual stream -> what the attention called ``name`` adds to it."""

    def turn(x: Buffer) -> Buffer:
        return g.rope(
            x,
            head_dim=m.rotated,
            inv_freq=rope.inv_freq,
            scale=rope.scale,
            adjacent=rope.adjacent,
        )

    def project(x: Buffer, role: str, width: int, *, bias: bool = False) -> Buffer:
        owner = f"{name}.{role}"
        return g.linear(x, f"{owner}.weight", width, bias=f"{owner}.bias" if bias else None)

    def parts(kind: str) -> list[str]:
        return [f"{name}.kv_b_proj.{head}.{kind}.weight" for head in range(heads)]

    columns, all_columns = m.query_columns, heads * m.query_columns
    if m.query:
        q = project(h, "q_a_proj", m.query, bias=m.bias)
        q = g.rms_norm(q, f"{name}.q_a_layernorm.weight", eps=_EPS)
        q = project(q, "q_b_proj", all_columns)
    else:
        q = project(h, "q_proj", all_columns)
    kv = project(h, "kv_a_proj_with_mqa", m.width + m.rotated, bias=m.bias)
    latent = g.columns(kv, 0, m.width)
    latent = g.rms_norm(latent, f"{name}.kv_a_layernorm.weight", eps=_EPS)
    queries = g.head_linear(g.head_columns(q, 0, m.keys, columns), parts("key"), m.width)
    rotated = turn(g.head_columns(q, m.keys, m.rotated, columns))
    key = g.join_heads(latent, turn(g.columns(kv, m.width, m.rotated)), 1)
    mixed = g.attention(
        g.join_heads(queries, rotated, heads),
        key,
        g.columns(key, 0, m.width),
        key_dim=m.width + m.rotated,
        scale=scale,
        window=0,
    )
    values = g.head_linear(mixed, parts("value"), m.values)
    return project(values, "o_proj", hidden, bias=m.bias)
