"""The op table: what each op computes, reads and is told, and what passes and executors must know of it.

Models are described in these, and every executor implements all of them:

==============  ================================================================================
embed           token ids -> rows of ``weight`` [vocab, width]
linear          x [T, k] @ ``weight`` [n, k]^T (+ ``bias`` [n])
rms_norm        x * rsqrt(mean(x^2) + eps) * (``weight`` + ``offset``), over each group of
                ``head_dim`` columns (all columns when head_dim is the width); arXiv:1910.07467.
                Without ``weight``, which some have not, the last factor is 1
rope            rotates pairs of each head's first 2 * len(inv_freq) columns by position *
                inv_freq, times ``scale``; the others stay; arXiv:2104.09864. A pair is a column
                of their first half and that of the second, or neighbours if ``adjacent``
attention       q, k, v -> causal attention over the paged KV of ``layer``, written first;
                softmax(q k^T * scale) v; ``window`` > 0 limits keys to the last ``window``, or if
                ``chunked`` to those from the last multiple of it on (Llama 4).
                ``cap`` > 0 makes each score s = q k^T * scale cap * tanh(s / cap); arXiv:2408.00118.
                q has heads * ``key_dim`` columns, the result heads * ``value_dim``. ``sinks`` has for each
                head a score that takes part in the softmax and belongs to no value; arXiv:2309.17453
grow            x * (1 + ``factor`` * log(1 + floor((position + 1) / ``interval``))): queries that
                grow with the context, in arXiv:2501.19399's way as Llama 4 has it
silu_mul        silu(a) * b
gelu_tanh       gelu(x) by its tanh approximation; arXiv:1606.08415
gelu            gelu(x): x * normal distribution function of x, by erf; arXiv:1606.08415
gelu_tanh_mul   gelu(a) * b, gelu by its tanh approximation
gelu_mul        gelu(a) * b, gelu by erf
sigmoid_mul     sigmoid(a) * b
layer_norm      (x - mean) * rsqrt(variance + eps) * ``weight`` (+ ``bias``), mean and variance of
                each group of ``head_dim`` columns, which have weights of their own;
                arXiv:1607.06450
add             a + b
scale           x * ``factor``
soft_cap        cap * tanh(x / ``cap``)
columns         the columns of x from ``start`` on: a view, nothing moves
head_columns    of each head of x, ``stride`` columns wide, the ``size`` columns from ``start`` on
select_rows     keeps the rows whose logits are wanted
lora            y, x -> y + the low-rank products of the adapter of the row's sequence, if it has one, with
                x: for each of ``modules`` (number of a linear layer in ``Program.adapted``, first column,
                columns) scale * b (a x) is added to these columns of y; arXiv:2106.09685
==============  ================================================================================

Mixtures of experts (arXiv:1701.06538) have these, too:

==============  ================================================================================
route           the logits of a router, one for each expert -> the ``per_token`` experts of the
                greatest scores (the lower number of equals), greatest first, then their weights.
                ``scores`` are the "softmax" or "sigmoid" of the logits. What is compared is the
                score plus the expert's ``bias``, if there is one; what weighs is the score, divided
                by the sum of those chosen if it is to ``normalize``, times ``factor``. Of ``groups``
                of experts of one size, only ``kept_groups`` are looked at: those with the greatest
                sums of their ``group_best`` greatest; arXiv:2412.19437
experts         x, routes -> the weighted sum, in the order of the choices, of
                silu(x ``gate``^T) * (x ``up``^T) ``down``^T. Each role lists one matrix an expert. An
                expert's weights are read once for all rows that chose it, those of others never.
                ``limit`` > 0 makes of gate's and up's products g and u, g at most ``limit`` and u
                within it, g * sigmoid(``alpha`` * g) * (u + 1); arXiv:2508.10925. With
                ``scaled_inputs`` a choice's weight scales the x that its expert reads, and the sum
                is a plain one; such experts have no biases
sigmoid_scale   x * sigmoid(b), b [T, 1]
==============  ================================================================================

Latent attention (arXiv:2405.04434) has these, too:

==============  ================================================================================
head_linear     of each head of x its columns @ the head's own matrix^T; ``weight`` lists them
join_heads      a, b -> of each of ``heads`` its columns of a, ``size`` of them, then those of b
==============  ================================================================================

Recurrent layers have these, too. Each keeps, for each sequence, a ``state`` of fixed size (its place in
``Program.states``), float32, which begins with zeros and takes in one token after another. ``heads`` of
the last two share each of ``groups`` of keys and queries evenly; rows of theirs have ``key_dim`` columns in
each group, those of v and of the result ``value_dim`` in each head:

==============  ================================================================================
causal_conv     silu of each column's sum of its last ``size`` rows times its row of ``weight``
                [width, 1, size], the newest times the last column, plus ``bias``
ssm             x, b, c, dt -> of each head y = S^T c + ``skip`` * x, with the step
                t = softplus(dt + ``dt_bias``) and the state S [key_dim, value_dim],
                S <- exp(-exp(``a_log``) * t) * S + b (t * x)^T; Mamba-2, arXiv:2405.21060
delta_rule      q, k, v, a, b -> of each head S^T q, where the state S [key_dim, value_dim] is first
                S <- exp(-exp(``a_log``) * softplus(a + ``dt_bias``)) * S, and then
                S <- S + k (sigmoid(b) * (v - S^T k))^T; gated delta rule, arXiv:2412.06464
==============  ================================================================================

Models of speech and of embeddings have these, too. An encoder input is one stretch of audio, or a text of
which a step has all tokens; its rows are consecutive, and ops that look beyond a row stay within it:

================  ==============================================================================
features          the encoder inputs' log-mel frames, one row each
im2col            x [T, c] -> [ceil(T / stride), c * size] for each input: row r holds the ``size`` rows
                  around row r * stride, zeros beyond the input's ends; column j * size + t is column j of
                  row r * stride + t - size // 2. With the flattened [n, c, size] kernel of a convolution
                  as ``weight``, ``linear`` on it is that convolution
embed_positions   positions in the encoder input, or of the tokens in their sequence -> rows of ``weight``
                  [positions, width], in which row ``first`` is that of position 0
embed_types       types of the tokens (in a pair of texts 0 or 1) -> rows of ``weight`` [types, width]
encoder_attention  q, k, v -> softmax(q k^T * scale) v over rows of the encoder input: from ``before`` rows
                  before a row's own to ``after`` behind it; -1 is all there are
encoder_rows      x -> no output; the executor's result: the encoder's rows, for another model
cross_kv          k, v -> into the paged KV of ``layer``, by the encoder output's block table; nothing else
cross_attention   q -> softmax(q k^T * scale) v over the whole encoder output of the sequence, as
                  cross_kv left it in ``layer``
cross_weights     q -> the weights softmax(q k^T * scale) that cross_attention would give to the encoder's
                  rows, of the heads ``chosen``; no output: they are the executor's result, there heads
                  ``first``, ``first`` + 1, ...
================  ==============================================================================

``graph/quantize_inputs.py`` and ``graph/passes/`` make these, for executors that run them:

==================  ============================================================================
quantize_input      x in the ``layout`` (:class:`galley.graph.quantize_inputs.RowLayout`) that the linear
                    layers which read it want: rounded to bfloat16, or to int8 group by group
add_rms_norm        a + b -> (sum, rms_norm(sum))
add_layer_norm      a + b -> (sum, layer_norm(sum))
rope_attention      q, k, v -> (rope(q), attention(rope(q), rope(k), v)); the turned keys go straight
                    into the cache
``OP_quantize``     an op of the table that ``quantizes`` and ``quantize_input`` of its last output
==================  ============================================================================
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Signature:
    """An op's line in the table.

    Attributes:
        inputs: how many buffers it reads.
        outputs: how many buffers it writes.
        weights: roles of tensors that it needs.
        optional: roles of tensors that it may have.
        attrs: names of its attributes.
        matrices: the roles whose tensors executors pack, in the kind that is planned for each.
        arguments: what the native executor's step of this op is told, in order: roles, attributes,
            "width" (of the first output), "layout" (of the last output), "input_layout" or "cache" (of
            experts on disk). Buffers follow.
        per_row: a row of its outputs depends on the same row of its inputs alone, not on its position.
        in_place: its output may lie where an input of the same size lies that nobody needs afterwards:
            the op is done with a row's inputs, or with each of their elements, before it writes there.
        view: it names a part of its input; nothing is computed.
        reads_a_row: computing a row reads one row of its weights, not all of them.
        multiplies: each weight is multiplied and added once for each row.
        apart: a role's matrices are packed by themselves, not as one.
        routed: a role lists a matrix for each of several experts; a row
            reads and multiplies ``per_token`` of them.
        rounds: it rounds its inputs itself, to what its attribute ``inputs`` says by the kind of a matrix.
        works: it is told where it has working memory (:func:`galley.ops.lowering.work_bytes`).
        quantizes: it can quantize its last output itself, as ``<op>_quantize``.
        base: of ``<op>_quantize``, the op.
        colour: of its box in the picture.
    """

    inputs: int
    outputs: int = 1
    weights: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    attrs: tuple[str, ...] = ()
    matrices: frozenset[str] = frozenset()
    arguments: tuple[str, ...] = ()
    per_row: bool = False
    in_place: bool = False
    view: bool = False
    reads_a_row: bool = False
    multiplies: bool = False
    apart: bool = False
    routed: bool = False
    rounds: bool = False
    works: bool = False
    quantizes: bool = False
    base: str = ""
    colour: str = "#eeeeee"


_WEIGHT: Final = frozenset({"weight"})
_BIAS: Final = frozenset({"bias"})
_NORM: Final = ("eps", "head_dim", "offset")
_HEADS: Final = ("heads", "kv_heads", "key_dim", "value_dim", "scale")
_ATTENTION: Final = ("layer", *_HEADS, "window", "chunked", "cap")
_ATTENTION_ARGUMENTS: Final = ("layer", "heads", "scale", "window", "chunked", "cap")
_ROUTE: Final = (
    "experts",
    "per_token",
    "scores",
    "normalize",
    "factor",
    "groups",
    "kept_groups",
    "group_best",
)
_EXPERT: Final = frozenset({"gate", "up", "down"})
_EXPERT_BIAS: Final = ("gate_bias", "up_bias", "down_bias")
_EXPERTS: Final = ("per_token", "alpha", "limit", "scaled_inputs")
_SINKS: Final = frozenset({"sinks"})
_DECAY: Final = ("a_log", "dt_bias")
_RECURRENCE: Final = ("state", "heads", "groups")
_BLUE: Final = "#cfe3ff"
_GREEN: Final = "#d9f2d9"
_ORANGE: Final = "#ffd9c2"
_YELLOW: Final = "#fff3b8"
_PURPLE: Final = "#e3d3f5"


def _elementwise(inputs: int, *attrs: str) -> Signature:
    """Of an op that makes each element of its output of the same element of its inputs."""
    return Signature(
        inputs,
        attrs=attrs,
        per_row=True,
        in_place=True,
        quantizes=True,
        arguments=(*attrs, "width", "layout"),
    )


def _rms_norm(inputs: int = 1, outputs: int = 1) -> Signature:
    return Signature(
        inputs,
        outputs,
        optional=_WEIGHT,
        attrs=_NORM,
        arguments=("weight", "eps", "width", "layout"),
        per_row=True,
        in_place=True,
        quantizes=True,
    )


def _layer_norm(inputs: int = 1, outputs: int = 1) -> Signature:
    return Signature(
        inputs,
        outputs,
        weights=_WEIGHT,
        optional=_BIAS,
        attrs=("eps", "head_dim"),
        arguments=("weight", "bias", "eps", "head_dim", "layout"),
        per_row=True,
        in_place=True,
        quantizes=True,
    )


_OPS: Final[Mapping[str, Signature]] = {
    "embed": Signature(
        0,
        weights=_WEIGHT,
        matrices=_WEIGHT,
        arguments=("weight",),
        reads_a_row=True,
        colour=_GREEN,
    ),
    "linear": Signature(
        1,
        weights=_WEIGHT,
        optional=_BIAS,
        matrices=_WEIGHT,
        arguments=("weight", "bias", "input_layout"),
        per_row=True,
        multiplies=True,
        colour=_BLUE,
    ),
    "rms_norm": _rms_norm(),
    "rope": Signature(
        1,
        attrs=("head_dim", "inv_freq", "scale", "adjacent"),
        arguments=("inv_freq", "scale", "adjacent", "head_dim", "width"),
        in_place=True,
        colour="#ffeecb",
    ),
    "grow": Signature(
        1,
        attrs=("interval", "factor"),
        arguments=("interval", "factor", "width"),
        in_place=True,
    ),
    "attention": Signature(
        3,
        optional=_SINKS,
        attrs=_ATTENTION,
        arguments=("sinks", *_ATTENTION_ARGUMENTS),
        colour=_ORANGE,
    ),
    "silu_mul": _elementwise(2),
    "gelu_tanh_mul": _elementwise(2),
    "gelu_tanh": _elementwise(1),
    "gelu": _elementwise(1),
    "layer_norm": _layer_norm(),
    "gelu_mul": _elementwise(2),
    "sigmoid_mul": _elementwise(2),
    "add": _elementwise(2),
    "scale": _elementwise(1, "factor"),
    "soft_cap": _elementwise(1, "cap"),
    "columns": Signature(1, attrs=("start",), per_row=True, view=True),
    "head_columns": Signature(
        1,
        attrs=("start", "size", "stride"),
        arguments=("start", "size", "stride", "width"),
        per_row=True,
    ),
    "select_rows": Signature(1, arguments=("width",), colour="#e8dcf7"),
    "route": Signature(
        1,
        optional=frozenset({"bias"}),
        attrs=_ROUTE,
        arguments=("bias", *_ROUTE),
        per_row=True,
        colour=_YELLOW,
    ),
    "experts": Signature(
        2,
        weights=_EXPERT,
        optional=frozenset(_EXPERT_BIAS),
        matrices=_EXPERT,
        attrs=(*_EXPERTS, "inputs"),
        arguments=("gate", "up", "down", *_EXPERT_BIAS, *_EXPERTS, "cache", "work"),
        per_row=True,
        multiplies=True,
        apart=True,
        routed=True,
        rounds=True,
        works=True,
        colour=_BLUE,
    ),
    "head_linear": Signature(
        1,
        weights=_WEIGHT,
        matrices=_WEIGHT,
        attrs=("inputs",),
        arguments=("weight", "work"),
        per_row=True,
        multiplies=True,
        apart=True,
        rounds=True,
        works=True,
        colour=_BLUE,
    ),
    "join_heads": Signature(
        2, attrs=("heads", "size"), arguments=("heads", "size", "width"), per_row=True
    ),
    "causal_conv": Signature(
        1,
        weights=_WEIGHT,
        optional=_BIAS,
        attrs=("state", "size"),
        arguments=("weight", "bias", "state", "size", "width"),
        colour=_PURPLE,
    ),
    "ssm": Signature(
        4,
        weights=frozenset({*_DECAY, "skip"}),
        attrs=_RECURRENCE,
        arguments=(*_DECAY, "skip", *_RECURRENCE),
        colour=_PURPLE,
    ),
    "delta_rule": Signature(
        5,
        weights=frozenset(_DECAY),
        attrs=_RECURRENCE,
        arguments=(*_DECAY, *_RECURRENCE),
        colour=_PURPLE,
    ),
    "sigmoid_scale": Signature(2, arguments=("width",), per_row=True, in_place=True),
    "lora": Signature(
        2,
        attrs=("modules", "depth"),
        arguments=("modules", "depth", "width"),
        per_row=True,
        in_place=True,
        colour="#fff3a8",
    ),
    "features": Signature(0, arguments=("width",)),
    "im2col": Signature(
        1, attrs=("channels", "size", "stride"), arguments=("channels", "size", "stride")
    ),
    "embed_positions": Signature(
        0,
        weights=_WEIGHT,
        attrs=("first",),
        arguments=("weight", "first", "width"),
        reads_a_row=True,
    ),
    "embed_types": Signature(0, weights=_WEIGHT, arguments=("weight", "width"), reads_a_row=True),
    "encoder_attention": Signature(
        3,
        attrs=(*_HEADS, "before", "after", "exact"),
        arguments=(*_HEADS, "before", "after", "exact"),
        in_place=True,
    ),
    "encoder_rows": Signature(1, outputs=0, attrs=("columns",), arguments=("columns",)),
    "cross_kv": Signature(
        2, outputs=0, attrs=("layer", "kv_heads", "key_dim", "value_dim"), arguments=("layer",)
    ),
    "cross_attention": Signature(
        1, attrs=("layer", *_HEADS), arguments=("layer", "heads", "scale"), in_place=True
    ),
    "cross_weights": Signature(
        1,
        outputs=0,
        attrs=("layer", *_HEADS, "chosen", "first"),
        arguments=("layer", "heads", "chosen", "first", "scale"),
    ),
    "quantize_input": Signature(1, attrs=("layout",), arguments=("layout",), per_row=True),
    "add_rms_norm": _rms_norm(inputs=2, outputs=2),
    "add_layer_norm": _layer_norm(inputs=2, outputs=2),
    "rope_attention": Signature(
        3,
        outputs=2,
        optional=_SINKS,
        attrs=(*_ATTENTION, "inv_freq", "rope_scale", "adjacent"),
        arguments=("inv_freq", "rope_scale", "adjacent", "sinks", *_ATTENTION_ARGUMENTS),
        in_place=True,
        colour=_ORANGE,
    ),
}

SIGNATURES: Final[Mapping[str, Signature]] = {
    **_OPS,
    **{
        f"{name}_quantize": dataclasses.replace(op, base=name, attrs=(*op.attrs, "layout"))
        for name, op in _OPS.items()
        if op.quantizes
    },
}
"""Name of an op -> its line in the table."""
