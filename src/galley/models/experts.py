"""Mixtures of experts (arXiv:1701.06538): what stands in place of a decoder layer's MLP."""

from dataclasses import dataclass
from typing import Final, Literal

from galley.errors import CheckpointError
from galley.graph.trace import Buffer, ExpertNames, Tracer
from galley.models.fields import FILE, Fields

MAX_EXPERTS: Final = 2**16
"""Of a layer; the most published ones have some hundreds."""

GATE_UP_DOWN: Final = ExpertNames("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Sizes in elements.

    Attributes:
        sparse: of each layer, whether it has experts; others have a dense MLP.
        experts, per_token: that a layer has, and that a token goes to.
        width: of an expert, inside.
        normalize: the weights of a token's experts add up to one (times ``factor``).
        scores, factor, groups, kept_groups, group_best: see ``route`` in ``graph/signatures.py``.
        correction: the router has a bias, which counts for the choice alone.
        shared_width: of an MLP that all tokens go to; 0 is none.
        shared_gate: what that gives is scaled by a sigmoid.
        beside_mlp: they are not in place of the layer's MLP: both are added.
        router: name of the matrix that makes the logits, which may have a bias.
        expert_bias: an expert's matrices have biases.
        alpha, limit, scaled_inputs: see ``experts`` there.
        block: name of the whole within a layer.
        shared: name of the MLP within that.
        parts: names of an expert's gate, up and down.
    """

    sparse: tuple[bool, ...]
    experts: int
    per_token: int
    width: int
    normalize: bool
    scores: Literal["softmax", "sigmoid"] = "softmax"
    factor: float = 1.0
    groups: int = 1
    kept_groups: int = 1
    group_best: int = 1
    correction: bool = False
    shared_width: int = 0
    shared_gate: bool = False
    beside_mlp: bool = False
    router: str = "gate"
    router_bias: bool = False
    expert_bias: bool = False
    alpha: float = 1.0
    limit: float = 0.0
    scaled_inputs: bool = False
    block: str = "mlp"
    shared: str = "shared_expert"
    parts: ExpertNames = GATE_UP_DOWN


def read_counts(config: Fields, *names: str, per_token: int) -> tuple[int, int]:
    """How many experts a layer has, by the first of ``names`` that is there, and a token goes to.

    Raises:
        CheckpointError: a token goes to more than there are.
    """
    name = next((name for name in names if config.has(name)), names[0])
    experts = config.count(name, most=MAX_EXPERTS)
    chosen = config.count("num_experts_per_tok", per_token)
    if chosen > experts:
        raise CheckpointError(
            f"is {chosen}, but there are {experts} experts", file=FILE, field="num_experts_per_tok"
        )
    return experts, chosen


def sparse_layers(config: Fields) -> tuple[bool, ...]:
    """Qwen's: every ``decoder_sparse_step``-th layer, but for those of ``mlp_only_layers``."""
    step, dense = config.count("decoder_sparse_step", 1), config.tokens("mlp_only_layers")
    layers = config.layers("num_hidden_layers")
    return tuple((i + 1) % step == 0 and i not in dense for i in range(layers))


def read_deepseek(config: Fields, layers: int, *, grouped: bool = True, dense: int = 1) -> Experts:
    """DeepSeek-V3's (arXiv:2412.19437): sigmoid scores, a bias for the choice, groups, shared experts.

    ``grouped``: only experts of the best groups are chosen. ``dense``: the first layers that have none,
    where config.json does not say.

    Raises:
        CheckpointError: the groups are not of one size, or have not as many experts as a token goes to.
    """
    experts, per_token = read_counts(config, "n_routed_experts", "num_local_experts", per_token=8)
    groups, kept = (
        1 if not grouped or config.is_null(name) else config.count(name, 1)
        for name in ("n_group", "topk_group")
    )
    if experts % groups:
        raise config.wrong("n_group", f"a divisor of {experts} experts")
    if kept > groups or per_token > experts // groups * kept:
        raise config.wrong("topk_group", f"groups with {per_token} experts, {groups} at most")
    dense, width = (
        config.whole("first_k_dense_replace", dense),
        config.width("moe_intermediate_size"),
    )
    return Experts(
        sparse=tuple(layer >= dense for layer in range(layers)),
        experts=experts,
        per_token=per_token,
        width=width,
        normalize=config.flag("norm_topk_prob", True),
        scores="sigmoid",
        factor=config.number("routed_scaling_factor", 1.0),
        groups=groups,
        kept_groups=kept,
        group_best=min(2, experts // groups),
        correction=True,
        shared_width=width * config.whole("n_shared_experts", 1),
        shared="shared_experts",
    )


def describe_experts(g: Tracer, m: Experts, h: Buffer, layer: str) -> Buffer:
    """The normed residual stream -> what the layer adds to it. ``layer``: its name."""
    name = f"{layer}.{m.block}"
    correction = f"{name}.gate.e_score_correction_bias" if m.correction else None
    router = f"{name}.{m.router}"
    logits_bias = f"{router}.bias" if m.router_bias else None
    routes = g.route(
        g.linear(h, f"{router}.weight", m.experts, bias=logits_bias),
        per_token=m.per_token,
        scores=m.scores,
        normalize=m.normalize,
        factor=m.factor,
        bias=correction,
        groups=m.groups,
        kept_groups=m.kept_groups,
        group_best=m.group_best,
    )
    names, biases = (
        [
            ExpertNames(*(f"{name}.experts.{i}.{part}.{kind}" for part in m.parts))
            for i in range(m.experts)
        ]
        for kind in ("weight", "bias")
    )
    routed = g.experts(
        h,
        routes,
        names,
        m.width,
        biases=biases if m.expert_bias else (),
        alpha=m.alpha,
        limit=m.limit,
        scaled_inputs=m.scaled_inputs,
    )
    return g.add(routed, _shared(g, m, h, name)) if m.shared_width else routed


def _shared(g: Tracer, m: Experts, h: Buffer, name: str) -> Buffer:
    mlp, width = f"{name}.{m.shared}", m.shared_width
    gate, up = (g.linear(h, f"{mlp}.{part}_proj.weight", width) for part in ("gate", "up"))
    y = g.linear(g.silu_mul(gate, up), f"{mlp}.down_proj.weight", h.width)
    return g.sigmoid_scale(y, g.linear(h, f"{mlp}_gate.weight", 1)) if m.shared_gate else y
