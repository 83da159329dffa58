"""Checks of instruction sets, and of the kernels that use them."""

import os
from typing import Final

from galley.doctor.findings import Context, Finding
from galley.errors import SettingsError

_FLAGS: Final = {
    "avx2": "avx2",
    "avx512f": "avx512f",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512",
    "avx_vnni": "avxvnni",
    "amx_tile": "amx",
    "asimddp": "neon",
}
"""Flag of /proc/cpuinfo -> the first set of kernels that uses it."""

_COSTS: Final = {
    "avx512vnni": "bf16 weights are widened before each product: about half the prefill speed of bf16",
    "avx512f": "no integer dot products: int8 and int4 prefill at a third of the speed of VNNI",
    "avx2": "no integer dot products and half the width of AVX-512: prefill at a quarter of the speed "
    "or less",
    "avxvnni": "half the width of AVX-512, and bf16 weights are widened before each product",
    "portable": "plain C++ without vector instructions: ten times slower or worse",
}
"""Set of kernels -> its cost, for those that are not the fastest of their architecture."""


def check(context: Context) -> list[Finding]:
    """Report which kernels run here, and whether the CPU supports better ones."""
    flags = cpu_flags(context)
    has = ", ".join(flag for flag in _FLAGS if flag in flags) or "none used by the kernels"
    try:
        from galley import _native
        from galley.ops.isa import ISA_VARIABLE, choose_isa
    except ImportError as error:
        return [
            Finding(
                check="kernels",
                level="problem",
                found=f"the native kernels cannot be imported ({error})",
                cost="models run on the reference executor, which needs torch and is many times slower",
                remedy="install a wheel for this machine, or build from source with a C++17 compiler",
                figures={"instructions": has},
            )
        ]
    supported = _native.supported_isas()
    try:
        isa = choose_isa(os.environ)
    except SettingsError as error:
        return [
            Finding(
                check="kernels", level="problem", found=str(error), remedy=f"unset {ISA_VARIABLE}"
            )
        ]
    figures: dict[str, float | str] = {"instructions": has, "isa": isa}
    if isa != supported[0]:
        return [
            Finding(
                check="kernels",
                level="warning",
                found=f"{ISA_VARIABLE} forces {isa}, but this CPU supports {supported[0]}",
                cost=_COSTS.get(isa, "slower kernels than this CPU supports"),
                remedy=f"unset {ISA_VARIABLE}",
                figures=figures,
            )
        ]
    if "amx_tile" in flags and isa != "amx":
        return [
            Finding(
                check="kernels",
                level="warning",
                found=f"the CPU has AMX, but {isa} kernels run: Linux or the build does not provide AMX",
                cost="prefill and large batches at a tenth of the speed of AMX",
                remedy="use Linux 5.16 or later, a container runtime whose seccomp profile allows "
                "arch_prctl, "
                "and a wheel built with AMX",
                figures=figures,
            )
        ]
    cost = _COSTS.get(isa, "")
    return [
        Finding(
            check="kernels",
            level="warning" if isa == "portable" else "note" if cost else "ok",
            found=f"{isa} kernels (of {', '.join(supported)}); instructions: {has}",
            cost=cost,
            remedy="use a newer CPU; --weight-dtype int4 reads the fewest bytes" if cost else "",
            figures=figures,
        )
    ]


def cpu_flags(context: Context) -> set[str]:
    """Return the flags of the first core in /proc/cpuinfo."""
    for line in context.host.text("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(value.split())
    return set()
