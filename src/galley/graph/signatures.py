"""The op table: the computation, inputs and attributes of each op, and its properties for passes.

Models are described with these ops:

==============  ================================================================================
embed           token ids -> rows of ``weight`` [vocab, width]
linear          x [T, k] @ ``weight`` [n, k]^T (+ ``bias`` [n])
rms_norm        x * rsqrt(mean(x^2) + eps) * (``weight`` + ``offset``), over each group of
                ``head_dim`` columns (all columns when head_dim is the width); arXiv:1910.07467.
                Without ``weight``, which is optional, the last factor is 1
rope            rotates pairs of each head's first 2 * len(inv_freq) columns by position *
                inv_freq, times ``scale``; the others stay; arXiv:2104.09864. A pair is a column
                of their first half and one of the second, or adjacent columns if ``adjacent``
attention       q, k, v -> causal attention over the paged KV of ``layer``, written first;
                softmax(q k^T * scale) v; ``window`` > 0 limits keys to the last ``window``, or if
                ``chunked`` to those from the last multiple of it on (Llama 4). ``cap`` > 0 replaces each
                score s = q k^T * scale by cap * tanh(s / cap); arXiv:2408.00118. q has
                heads * ``key_dim`` columns, the result heads * ``value_dim``. ``sinks`` has a score for
                each head that is part of the softmax but has no value; arXiv:2309.17453
scale_queries_by_position
                x * (1 + ``factor`` * log(1 + floor((position + 1) / ``interval``))): queries are
                scaled with the context length, as in arXiv:2501.19399 and Llama 4
silu_mul        silu(a) * b
gelu_tanh       gelu(x) by its tanh approximation; arXiv:1606.08415
gelu            gelu(x): x * normal distribution function of x, by erf; arXiv:1606.08415
gelu_tanh_mul   gelu(a) * b, gelu by its tanh approximation
gelu_mul        gelu(a) * b, gelu by erf
sigmoid_mul     sigmoid(a) * b
layer_norm      (x - mean) * rsqrt(variance + eps) * ``weight`` (+ ``bias``), mean and variance of
                each group of ``head_dim`` columns; each group has its own weights;
                arXiv:1607.06450
add             a + b
scale           x * ``factor``
soft_cap        cap * tanh(x / ``cap``)
columns         the columns of x from ``start`` on: a view without a copy
head_columns    the ``size`` columns from ``start`` on of each head of x, which has ``stride`` columns
select_rows     keeps the rows whose logits are requested
lora            y, x -> y + the low-rank products of the adapter of the row's sequence, if it has one, with
                x: for each of ``modules`` (number of a linear layer in ``Program.adapted``, first column,
                columns) scale * b (a x) is added to these columns of y; arXiv:2106.09685
==============  ================================================================================

Mixtures of experts (arXiv:1701.06538) also have these:

==============  ================================================================================
route           the logits of a router, one for each expert -> the ``per_token`` experts with the
                greatest scores (the lower number if equal), greatest first, then their weights.
                ``scores`` are the "softmax" or "sigmoid" of the logits. Experts are compared by the
                score plus the expert's ``bias``, if there is one; the weight is the score, divided
                by the sum of the chosen scores if ``normalize`` is set, times ``factor``. Of
                ``groups`` of experts of equal size, only ``kept_groups`` are considered: those with
                the greatest sums of their ``group_best`` greatest scores; arXiv:2412.19437
experts         x, routes -> the weighted sum, in the order of the choices, of
                silu(x ``gate``^T) * (x ``up``^T) ``down``^T. Each role lists one matrix per expert. An
                expert's weights are read once for all rows that chose it, or never if none did.
                With ``limit`` > 0, the products g of gate (clamped to at most ``limit``) and u of up
                (clamped to +-``limit``) give g * sigmoid(``alpha`` * g) * (u + 1); arXiv:2508.10925.
                With ``scaled_inputs`` a choice's weight scales the x that its expert reads, and the
                sum is unweighted; such experts have no biases. ``ranks``, if not empty, has how many
                rows of gate and up each rank has (``graph/divide/``): their products are gathered
                before they are multiplied by down, of which a rank has rows, too
sigmoid_scale   x * sigmoid(b), b [T, 1]
==============  ================================================================================

Latent attention (arXiv:2405.04434) also has these:

==============  ================================================================================
head_linear     the columns of each head of x @ the head's own matrix^T; ``weight`` lists the matrices
join_heads      a, b -> for each of ``heads``, its ``size`` columns of a, then its columns of b
==============  ================================================================================

Recurrent layers also have these. Each keeps a float32 state of fixed size for each sequence (``state`` is
its index in ``Program.states``), which starts as zeros and is updated by one token after another. In the
last two, the ``heads`` are divided evenly among ``groups`` of keys and queries. Keys and queries have
``key_dim`` columns in each group; v and the result have ``value_dim`` columns in each head:

==============  ================================================================================
causal_conv     silu of each column's sum of its last ``size`` rows times its row of ``weight``
                [width, 1, size], the newest times the last column, plus ``bias``
ssm             x, b, c, dt -> for each head y = S^T c + ``skip`` * x, with the step
                t = softplus(dt + ``dt_bias``) and the state S [key_dim, value_dim],
                S <- exp(-exp(``a_log``) * t) * S + b (t * x)^T; Mamba-2, arXiv:2405.21060
delta_rule      q, k, v, a, b -> for each head S^T q, where the state S [key_dim, value_dim] is first
                S <- exp(-exp(``a_log``) * softplus(a + ``dt_bias``)) * S, and then
                S <- S + k (sigmoid(b) * (v - S^T k))^T; gated delta rule, arXiv:2412.06464
==============  ================================================================================

Speech and embedding models also have these. An encoder input is one stretch of audio, or a text all of
whose tokens are in the step; its rows are consecutive, and ops that read other rows stay within it:

================  ==============================================================================
features          the encoder inputs' log-mel frames, one row each
im2col            x [T, c] -> [ceil(T / stride), c * size] for each input: row r holds the ``size`` rows
                  around row r * stride, zeros beyond the input's ends; column j * size + t is column j of
                  row r * stride + t - size // 2. With the flattened [n, c, size] kernel of a convolution
                  as ``weight``, ``linear`` on it is that convolution
embed_positions   positions in the encoder input, or of the tokens in their sequence -> rows of ``weight``
                  [positions, width], in which row ``first`` is that of position 0
embed_types       types of the tokens (0 or 1 in a pair of texts) -> rows of ``weight`` [types, width]
encoder_attention  q, k, v -> softmax(q k^T * scale) v over rows of the encoder input, from ``before`` rows
                  before a row to ``after`` rows after it; -1 means all
encoder_rows      x -> no output; the rows are part of the executor's result, for another model
cross_kv          k, v -> no output; they are written to the paged KV of ``layer``, by the encoder output's
                  block table
cross_attention   q -> softmax(q k^T * scale) v over the whole encoder output of the sequence, as
                  cross_kv left it in ``layer``
cross_weights     q -> no output; the weights softmax(q k^T * scale) of cross_attention for the encoder's
                  rows, of the heads ``chosen``, are part of the executor's result, as heads ``first``,
                  ``first`` + 1, ...
================  ==============================================================================

``graph/quantize_inputs.py``, ``graph/passes/`` and ``graph/divide/`` create these, for executors that
run them:

==================  ============================================================================
quantize_input      x in the ``layout`` (:class:`galley.graph.quantize_inputs.RowLayout`) of the linear
                    layers that read it: rounded to bfloat16, or to int8 group by group
add_rms_norm        a + b -> (sum, rms_norm(sum))
add_layer_norm      a + b -> (sum, layer_norm(sum))
rope_attention      q, k, v -> (rope(q), attention(rope(q), rope(k), v)); the rotated keys are written
                    directly to the cache
all_gather          x, the columns of one of several ranks -> those of all, side by side; ``ranks`` has the
                    number of each. With ``leader_only`` only rank 0 gets them (``graph/divide/``)
embed_part          embed, where each rank has rows of the table, as many as ``ranks`` says, and gets the
                    others' from them
``OP_quantize``     an op of the table with ``quantizes``, followed by ``quantize_input`` of its last output
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
        inputs: number of buffers that it reads.
        outputs: number of buffers that it writes.
        weights: roles of tensors that it needs.
        optional: roles of tensors that it may have.
        attrs: names of its attributes.
        matrices: the roles whose tensors executors pack, each as its planned weight type.
        arguments: arguments of the native executor's step of this op, in order: roles, attributes, "width"
            (of the first output), "layout" (of the last output), "input_layout", "cache" (of experts on
            disk), "communicator" (of several ranks) or "work". Buffers follow.
        per_row: a row of its outputs depends only on the same row of its inputs, not on its position.
        columnwise: a column of its output depends only on the same column of its inputs.
        in_place: its output may overwrite an input of the same size that is not needed afterwards: the op
            has read a row's inputs, or each of their elements, before it writes there.
        view: its output is a part of its input; nothing is computed.
        reads_a_row: computing a row reads one row of its weights, not all of them.
        multiplies: each weight is multiplied and added once for each row.
        apart: the matrices of a role are packed separately, not as one.
        routed: a role lists a matrix for each of several experts; a row reads and multiplies
            ``per_token`` of them.
        rounds: it rounds its inputs itself; its attribute ``inputs`` has the type for each weight type.
        works: it needs working memory, whose place is an argument
            (:func:`galley.ops.lowering.work_bytes`).
        quantizes: it can quantize its last output itself, as ``<op>_quantize``.
        base: the original op of ``<op>_quantize``.
        color: color of its box in the picture.
    """

    inputs: int
    outputs: int = 1
    weights: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    attrs: tuple[str, ...] = ()
    matrices: frozenset[str] = frozenset()
    arguments: tuple[str, ...] = ()
    per_row: bool = False
    columnwise: bool = False
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
    color: str = "#eeeeee"


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
    """Return the signature of an op whose output elements depend on the same elements of its inputs."""
    return Signature(
        inputs,
        attrs=attrs,
        per_row=True,
        columnwise=True,
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
        color=_GREEN,
    ),
    "linear": Signature(
        1,
        weights=_WEIGHT,
        optional=_BIAS,
        matrices=_WEIGHT,
        arguments=("weight", "bias", "input_layout"),
        per_row=True,
        multiplies=True,
        color=_BLUE,
    ),
    "rms_norm": _rms_norm(),
    "rope": Signature(
        1,
        attrs=("head_dim", "inv_freq", "scale", "adjacent"),
        arguments=("inv_freq", "scale", "adjacent", "head_dim", "width"),
        in_place=True,
        color="#ffeecb",
    ),
    "scale_queries_by_position": Signature(
        1,
        attrs=("interval", "factor"),
        arguments=("interval", "factor", "width"),
        columnwise=True,
        in_place=True,
    ),
    "attention": Signature(
        3,
        optional=_SINKS,
        attrs=_ATTENTION,
        arguments=("sinks", *_ATTENTION_ARGUMENTS),
        color=_ORANGE,
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
    "select_rows": Signature(1, arguments=("width",), columnwise=True, color="#e8dcf7"),
    "route": Signature(
        1,
        optional=frozenset({"bias"}),
        attrs=_ROUTE,
        arguments=("bias", *_ROUTE),
        per_row=True,
        color=_YELLOW,
    ),
    "experts": Signature(
        2,
        weights=_EXPERT,
        optional=frozenset(_EXPERT_BIAS),
        matrices=_EXPERT,
        attrs=(*_EXPERTS, "ranks", "inputs"),
        arguments=(
            *("gate", "up", "down", *_EXPERT_BIAS, *_EXPERTS),
            *("ranks", "communicator", "cache", "work"),
        ),
        per_row=True,
        multiplies=True,
        apart=True,
        routed=True,
        rounds=True,
        works=True,
        color=_BLUE,
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
        color=_BLUE,
    ),
    "join_heads": Signature(
        2, attrs=("heads", "size"), arguments=("heads", "size", "width"), per_row=True
    ),
    "causal_conv": Signature(
        1,
        columnwise=True,
        weights=_WEIGHT,
        optional=_BIAS,
        attrs=("state", "size"),
        arguments=("weight", "bias", "state", "size", "width"),
        color=_PURPLE,
    ),
    "ssm": Signature(
        4,
        weights=frozenset({*_DECAY, "skip"}),
        attrs=_RECURRENCE,
        arguments=(*_DECAY, "skip", *_RECURRENCE),
        color=_PURPLE,
    ),
    "delta_rule": Signature(
        5,
        weights=frozenset(_DECAY),
        attrs=_RECURRENCE,
        arguments=(*_DECAY, *_RECURRENCE),
        color=_PURPLE,
    ),
    "sigmoid_scale": Signature(2, arguments=("width",), per_row=True, in_place=True),
    "lora": Signature(
        2,
        attrs=("modules", "depth"),
        arguments=("modules", "depth", "width"),
        per_row=True,
        in_place=True,
        color="#fff3a8",
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
    "embed_part": Signature(
        0,
        weights=_WEIGHT,
        matrices=_WEIGHT,
        attrs=("ranks",),
        arguments=("weight", "ranks", "communicator"),
        reads_a_row=True,
        color=_GREEN,
    ),
    "all_gather": Signature(
        1,
        attrs=("ranks", "leader_only"),
        arguments=("communicator", "ranks", "leader_only"),
        per_row=True,
        color="#d5d5f5",
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
        color=_ORANGE,
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
"""Name of an op -> its signature."""
