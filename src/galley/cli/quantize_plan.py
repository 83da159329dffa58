"""The plan of ``galley quantize`` for each layer, made from the command's options."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from galley.cli.terminal import progress, table
from galley.errors import SettingsError

if TYPE_CHECKING:
    from galley.calibration.held_out import Texts
    from galley.calibration.quantize import Method, Plan
    from galley.calibration.sensitivity import Choice, Part
    from galley.engine.read_model import Model
    from galley.ops.executor import ExecutorFactory
    from galley.quant.grid import Scheme

_MEASURED_TOKENS: Final = 1024
"""Tokens on which the sensitivity of parts is measured."""

_CALIBRATED_TOKENS: Final = 4096
_TOKENS_A_COLUMN: Final = 2
"""Least number of calibration tokens per column of the widest matrix: with fewer, GPTQ overfits."""

_GROUP: Final = 128
_FINEST: Final = 32
"""Least number of columns of a group in mixed precision."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Options of the command, as given; ``gguf``: for that format; ``inputs``: as in a Plan."""

    method: "Method"
    bits: str
    group: int | None
    symmetric: bool
    act_order: bool
    ignore: tuple[str, ...]
    budget: int | None
    max_kl: float | None
    inputs: str
    gguf: bool

    @property
    def mixed(self) -> bool:
        """Whether each part gets a separate scheme."""
        return self.budget is not None or self.max_kl is not None

    @property
    def calibrates(self) -> bool:
        """Whether calibration texts affect the output; the loss is then measured on others."""
        from galley.calibration.quantize import CALIBRATED

        return self.mixed or self.observes or self.method in CALIBRATED

    @property
    def observes(self) -> bool:
        """Whether inputs get static scales."""
        from galley.calibration.compressed import DYNAMIC_INPUTS, FLOAT_INPUTS

        return self.inputs not in (FLOAT_INPUTS, DYNAMIC_INPUTS)


def plan_of(read: "Model", factory: "ExecutorFactory", texts: "Texts", wanted: Wanted) -> "Plan":
    """Return the plan. For mixed precision, print a table of each part's loss and scheme.

    Raises:
        SettingsError: options contradict each other, or leave nothing to quantize.
    """
    plan = _plan(read, wanted)
    return _mixed(read, factory, plan, texts, wanted) if wanted.mixed else plan


def check_model(read: "Model", wanted: Wanted) -> None:
    """Raise an error for a model, or for options with this model, that are not supported."""
    from galley.calibration.experts import check_experts, expert_ops
    from galley.calibration.matrices import check_dense

    check_dense(read, experts=True)
    check_experts(read, wanted.method)
    if not expert_ops(read.program):
        return
    for option, given in (
        ("--budget", wanted.budget is not None),
        ("--max-kl", wanted.max_kl is not None),
        (f"--inputs {wanted.inputs}", wanted.observes),
    ):
        if given:
            raise SettingsError(f"{option} does not support models with experts; leave it out")


def _plan(read: "Model", wanted: Wanted) -> "Plan":
    from galley.calibration.matrices import linear_weights
    from galley.calibration.quantize import Plan

    names = linear_weights(read.program)
    names = [name for name in names if not any(part in name for part in wanted.ignore)]
    if not names:
        raise SettingsError(
            f"--ignore {' '.join(wanted.ignore)} excludes every layer; nothing is left to quantize"
        )
    scheme = _scheme(wanted)
    if wanted.gguf:
        shapes = read.program.shapes
        odd = [name for name in names if shapes[name][1] % scheme.group]
        if odd:
            print(f"{len(odd)} layers are not quantized: {odd[0]} has {shapes[odd[0]][1]} columns")
        names = [name for name in names if name not in odd]
        if not names:
            raise SettingsError(
                f"no layer's columns divide into groups of {scheme.group}, as GGUF requires"
            )
    return Plan(wanted.method, dict.fromkeys(names, scheme), wanted.act_order, wanted.inputs)


def _scheme(wanted: Wanted) -> "Scheme":
    from galley.calibration.compressed import FLOAT_INPUTS
    from galley.formats.gguf_pack import BLOCK
    from galley.quant.grid import Scheme

    group, rounds_inputs = wanted.group, wanted.inputs != FLOAT_INPUTS
    if group is None:
        group = BLOCK if wanted.gguf else 0 if rounds_inputs else _GROUP
    if rounds_inputs and (wanted.bits != "8" or wanted.gguf or wanted.mixed or group):
        raise SettingsError(
            f"--inputs {wanted.inputs} needs --bits 8, --group 0 and compressed-tensors: other programs "
            "multiply int8 inputs only with whole rows of int8"
        )
    if wanted.bits == "8" and not wanted.symmetric:
        raise SettingsError("--zero-points are for --bits 4; integers of 8 bits are symmetric")
    if wanted.method == "smoothquant" and wanted.bits != "8":
        raise SettingsError("--method smoothquant needs --bits 8: weights and inputs become int8")
    if wanted.method == "smoothquant" and wanted.mixed:
        raise SettingsError(
            "--budget and --max-kl give some parts 4 bits; --method smoothquant needs 8"
        )
    if group % 16:
        raise SettingsError(f"--group {group}: expected a multiple of 16, or 0 for whole rows")
    if wanted.gguf and group != BLOCK:
        raise SettingsError(
            f"--group {group}: GGUF's integers have groups of {BLOCK}; leave --group out"
        )
    scheme = Scheme(4 if wanted.bits == "4" else 8, group, wanted.symmetric)
    return replace(scheme, scale_type="F16") if wanted.gguf else scheme


def _mixed(
    read: "Model", factory: "ExecutorFactory", plan: "Plan", texts: "Texts", wanted: Wanted
) -> "Plan":
    """Return a plan with a scheme for each part, chosen by its loss, and print the table of them."""
    from galley.calibration.held_out import first_texts
    from galley.calibration.sensitivity import assign, bytes_without, parts_of, schemes_of

    names = list(plan.schemes)
    windows = first_texts(texts.calibration, _MEASURED_TOKENS)
    deepest = max(read.program.shapes[name][1] for name in names)
    seen = first_texts(
        texts.calibration[len(windows) :], max(_CALIBRATED_TOKENS, _TOKENS_A_COLUMN * deepest)
    )
    with progress("parts", 0) as bar:
        parts = parts_of(
            *(read, factory, windows, names, kinds_of(plan.schemes[names[0]])),
            lambda name: bar.update(1),
            method=plan.method,
            calibration=seen,
        )
    room = None if wanted.budget is None else wanted.budget - bytes_without(read, names)
    choices = assign(parts, most_bytes=room, most_kl=wanted.max_kl)
    print(_choices_table(parts, choices))
    chosen = schemes_of(parts, choices)
    if not chosen:
        raise SettingsError("the unquantized checkpoint already meets this limit; nothing to do")
    return replace(plan, schemes=chosen)


def kinds_of(scheme: "Scheme") -> list["Scheme"]:
    """Return the choices of a part in mixed precision: 4 bits in these groups or finer ones, or 8 bits."""
    from galley.quant.grid import Scheme

    four = replace(scheme, bits=4)
    if scheme.scale_type == "F16":  # GGUF, whose groups are of one size
        return [four, replace(four, bits=8, symmetric=True)]
    halved = (scheme.group >> times for times in range(3))
    finer = [replace(four, group=g) for g in halved if g >= _FINEST]
    return [*(finer or [four]), Scheme(8)]


def _choices_table(parts: "Sequence[Part]", choices: "Sequence[Choice]") -> str:
    rows = []
    for part, choice in zip(parts, choices, strict=True):
        tried = (f"{_kind(c)} {c.kl:.2g}" for c in part.choices if c.scheme)
        more = f" and {len(part.names) - 1} more" if len(part.names) > 1 else ""
        name = part.names[0].removesuffix(".weight")
        taken = _kind(choice) if choice.scheme else "unquantized"
        rows.append((f"{name}{more}", ", ".join(tried), taken, f"{choice.bytes / 1e6:.4g}"))
    total = sum(choice.kl for choice in choices)
    size = sum(choice.bytes for choice in choices) / 1e6
    rows.append(("all", "", f"KL {total:.2g}", f"{size:.4g}"))
    return table(("layers", "KL on its own", "chosen", "MB"), rows, left=(0, 1, 2))


def _kind(choice: "Choice") -> str:
    """Return ``int4/64`` for 4 bits in groups of 64; ``int8`` for whole rows."""
    assert choice.scheme is not None
    group = f"/{choice.scheme.group}" if choice.scheme.group else ""
    return f"int{choice.scheme.bits}{group}"
