"""Mixtures of experts (arXiv:1701.06538), which replace a decoder layer's MLP."""

from dataclasses import dataclass
from typing import Final, Literal

from galley.errors import CheckpointError
from galley.graph.trace import Buffer, ExpertNames, Tracer
from galley.models.fields import FILE, Fields

MAX_EXPERTS: Final = 2**16
"""Maximum number of experts in a layer; published models have at most some hundreds."""

GATE_UP_DOWN: Final = ExpertNames("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Describes the experts; sizes are in elements.

    Attributes:
        sparse: for each layer, whether it has experts; others have a dense MLP.
        experts, per_token: number of experts in a layer, and of those that a token goes to.
        width: inner width of an expert.
        normalize: whether the weights of a token's experts are scaled to a sum of one (times
            ``factor``).
        scores, factor, groups, kept_groups, group_best: see ``route`` in ``graph/signatures.py``.
        correction: whether the router has a bias that only affects which experts are chosen.
        shared_width: inner width of an MLP that all tokens go to; 0: there is none.
        shared_gate: whether the output of that MLP is scaled by a sigmoid.
        added_to_mlp: whether experts do not replace the layer's MLP: the outputs of both are added.
        router: name of the matrix that gives the logits.
        router_bias: whether that matrix has a bias.
        expert_bias: whether an expert's matrices have biases.
        alpha, limit, scaled_inputs: see ``experts`` in the same file.
        block: name of router and experts within a layer.
        shared: name of the shared MLP within ``block``.
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
    added_to_mlp: bool = False
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
    """Return the number of experts in a layer, and of those that a token goes to.

    The former is the first of the fields ``names`` that is there.

    Raises:
        CheckpointError: a token goes to more experts than there are.
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
    """Return Qwen's sparse layers: every ``decoder_sparse_step``-th, except ``mlp_only_layers``."""
    step, dense = config.count("decoder_sparse_step", 1), config.tokens("mlp_only_layers")
    layers = config.layers("num_hidden_layers")
    return tuple((i + 1) % step == 0 and i not in dense for i in range(layers))


def read_deepseek(config: Fields, layers: int, *, grouped: bool = True, dense: int = 1) -> Experts:
    """Read DeepSeek-V3's experts (arXiv:2412.19437).

    They have sigmoid scores, a bias for the choice, groups, and shared experts.

    Args:
        config: fields of the model.
        layers: number of layers.
        grouped: whether only experts of the best groups are chosen.
        dense: number of first layers without experts, if config.json does not specify it.

    Raises:
        CheckpointError: the groups are not of one size, or have fewer experts than a token goes to.
    """
    experts, per_token = read_counts(config, "n_routed_experts", "num_local_experts", per_token=8)
    groups, kept = (
        1 if not grouped or config.is_null(name) else config.count(name, 1)
        for name in ("n_group", "topk_group")
    )
    if experts % groups:
        raise config.wrong("n_group", f"a divisor of {experts} experts")
    if kept > groups or per_token > experts // groups * kept:
        raise config.wrong("topk_group", f"enough groups for {per_token} experts, at most {groups}")
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
    """Describe the normed residual stream -> what the experts of layer ``layer`` add to it."""
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
