"""Checks of the settings of an engine that concern several settings or the form of a value."""

from typing import TYPE_CHECKING, Any

import msgspec

from galley.errors import SettingsError
from galley.settings.quality_gate import QualityGate
from galley.settings.values import parsed_address
from galley.types import SamplingDefaults

if TYPE_CHECKING:
    from galley.settings.engine import EngineSettings


def check_engine(own: "EngineSettings") -> None:
    """Raise SettingsError for settings that do not fit together, or of a wrong form."""
    _check_engine_options(own)
    own.with_own(SamplingDefaults())
    _check_experts(own)
    _check_ranks(own)
    if own.prefix_cache_dir and not own.prefix_cache:
        raise SettingsError(
            f"prefix_cache_dir is {own.prefix_cache_dir!r}, but prefix_cache is off; leave out one of "
            "them"
        )
    QualityGate.parse(own.quality_gate, against=own.quality_gate_against)
    _check_draft_model(own)
    if own.running_limit > own.max_batch_tokens:
        raise SettingsError(
            f"max_running ({own.max_running}) must not exceed max_batch_tokens "
            f"({own.max_batch_tokens}), because each running sequence decodes one token per step"
        )


def _check_engine_options(own: "EngineSettings") -> None:
    """Check that the options are a JSON object; its contents are left to the engine to check."""
    try:
        msgspec.json.decode(own.engine_options or "{}", type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise SettingsError(
            f"engine_options: {own.engine_options!r} is not a JSON object: {error}"
        ) from None


def _check_experts(own: "EngineSettings") -> None:
    if own.experts == "disk" and not own.weight_cache:
        raise SettingsError(
            "experts is disk, but weight_cache is off: experts are read from the file of packed weights"
        )
    if own.experts == "memory" and own.expert_cache_bytes is not None:
        raise SettingsError(
            f"expert_cache_bytes is {own.expert_cache_bytes}, but experts is memory; set experts to "
            "disk, or leave it out"
        )


def _check_ranks(own: "EngineSettings") -> None:
    elsewhere = len(own.tensor_parallel_rank)
    addresses = [parsed_address(a, "tensor_parallel_rank") for a in own.tensor_parallel_rank]
    for i, address in enumerate(addresses):
        if address in addresses[:i]:
            raise SettingsError(
                f"tensor_parallel_rank names {own.tensor_parallel_rank[i]} twice; a galley rank "
                "computes one part of a model, so start one for each"
            )
    if elsewhere and elsewhere >= own.tensor_parallel:
        raise SettingsError(
            f"tensor_parallel is {own.tensor_parallel}, but tensor_parallel_rank names {elsewhere} "
            f"ranks on other machines, and one is here; set it to at least {elsewhere + 1}"
        )
    if len(names := own.device.split(",")) not in (1, own.tensor_parallel):
        raise SettingsError(
            f"device is {own.device!r}, which names {len(names)} devices, but tensor_parallel is "
            f"{own.tensor_parallel}; name one for each rank, or set tensor_parallel to {len(names)}"
        )
    if own.tensor_parallel_cpus and own.tensor_parallel == 1:
        raise SettingsError(
            "tensor_parallel_cpus is given, but tensor_parallel is 1; set it, or leave out the CPUs"
        )


def _check_draft_model(own: "EngineSettings") -> None:
    if own.draft_model is None and own.speculation == "draft":
        raise SettingsError("speculation is draft, but no draft_model is given")
    if own.draft_model is not None and own.speculation not in ("auto", "draft"):
        raise SettingsError(
            f"draft_model is {own.draft_model!r}, but speculation is {own.speculation!r}, which does "
            "not use it; set speculation to auto or draft, or leave out draft_model"
        )
