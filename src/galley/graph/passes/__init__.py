"""Rewrite a traced program into one that computes the same bits in fewer and wider ops.

No pass may change a bit of the logits: merged layers sum each output over its inputs in the same order, and
fused ops compute a row with the same sequence of instructions. There is no pass that folds constants,
because these programs have none: ops use weights as they are (a norm's weight multiplied into the next
matrix would round differently), and all layers share one table of rotation angles.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

from galley.errors import SettingsError
from galley.graph.passes.drop_dead import drop_dead
from galley.graph.passes.fuse_add_norm import fuse_add_norm
from galley.graph.passes.fuse_gelu_quantize import fuse_gelu_quantize
from galley.graph.passes.fuse_norm_quantize import fuse_norm_quantize
from galley.graph.passes.fuse_rope_kv import fuse_rope_kv
from galley.graph.passes.fuse_silu_quantize import fuse_silu_quantize
from galley.graph.passes.hoist_select_rows import hoist_select_rows
from galley.graph.passes.merge_linears import merge_linears
from galley.graph.program import Program

Pass: TypeAlias = Callable[[Program], Program]

PASSES: Final[Mapping[str, Pass]] = {
    "hoist-select-rows": hoist_select_rows,
    "merge-linears": merge_linears,
    "fuse-add-norm": fuse_add_norm,
    "fuse-norm-quantize": fuse_norm_quantize,
    "fuse-silu-quantize": fuse_silu_quantize,
    "fuse-gelu-quantize": fuse_gelu_quantize,
    "fuse-rope-kv": fuse_rope_kv,
    "drop-dead": drop_dead,
}
"""Name -> pass, in the order in which they run."""


def enabled_passes(disabled: Collection[str]) -> dict[str, Pass]:
    """Return all passes except the ``disabled`` ones.

    Raises:
        SettingsError: a disabled pass does not exist.
    """
    for name in disabled:
        if name not in PASSES:
            raise SettingsError(f"disable_pass: unknown pass {name!r}; passes: {', '.join(PASSES)}")
    return {name: run for name, run in PASSES.items() if name not in disabled}


def run_passes(program: Program, disabled: Collection[str] = ()) -> Program:
    """Run all passes except the ``disabled`` ones on the program.

    Raises:
        SettingsError: a disabled pass does not exist.
    """
    for run in enabled_passes(disabled).values():
        program = run(program)
    return program
