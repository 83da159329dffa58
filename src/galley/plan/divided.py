"""The sizes of a model that several ranks of one machine compute together (tensor parallelism)."""

from collections import Counter
from dataclasses import replace

from galley.graph.divide import divide
from galley.graph.program import Program
from galley.ops.executor import ExpertMemory
from galley.plan.sizes import ModelSizes
from galley.settings.engine import Experts
from galley.types.model_info import ExpertCosts


def sizes_of_ranks(
    program: Program,
    precision: str,
    kv_dtype: str,
    isa: str | None = None,
    experts: Experts = "memory",
    *,
    ranks: int,
) -> ModelSizes:
    """Return the sums over all ranks; other arguments are those of :meth:`ModelSizes.of`.

    Raises:
        SettingsError: the model cannot be divided in this way, or as for the whole model.
    """
    whole = ModelSizes.of(program, precision, kv_dtype, isa, experts)
    if ranks == 1:
        return whole
    programs = [divide(program, rank, ranks).program for rank in range(ranks)]
    each = [ModelSizes.of(part, precision, kv_dtype, isa, experts) for part in programs]
    kv: Counter[int] = Counter()
    for one in each:
        kv.update(one.kv)
    held = sum(one.experts.bytes for one in each)
    read = sum(one.experts.bytes * one.experts.share for one in each)
    exchanges = gathered(programs[0])
    return replace(
        whole,
        ranks=ranks,
        weights=sum(one.weights for one in each),
        step_weights=sum(one.step_weights for one in each),
        experts=ExpertCosts(held, read / held) if held else ExpertCosts(),
        on_disk=ExpertMemory.of_ranks([one.on_disk for one in each]),
        kv=dict(kv),
        state=sum(one.state for one in each),
        row_operations=sum(one.row_operations for one in each),
        logit_operations=sum(one.logit_operations for one in each),
        row_bytes=sum(one.row_bytes for one in each),
        exchanged=4 * sum(exchanges),
        exchanges=len(exchanges),
    )


def gathered(program: Program) -> list[int]:
    """Return the columns of each exchange of a rank's program, for a token whose logits are not wanted."""
    found = []
    for op in program.ops:
        if op.name in ("embed_part", "all_gather") and not op.attrs.get("leader_only"):
            found.append(op.width)
        elif op.name == "experts" and op.attrs["ranks"]:
            found.append(op.attrs["per_token"] * sum(op.attrs["ranks"]))
    return found
