"""Reader of LoRA adapters as PEFT saves them: ``adapter_config.json`` and ``adapter_model.safetensors``.

A feature in the config that Galley does not implement is refused by the field's name; so is a tensor that
is not a factor of a linear layer. Sources: LoRA, arXiv:2106.09685; rank-stabilized scale, arXiv:2312.03732.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from galley.errors import CheckpointError, UnsupportedModel, shown
from galley.formats.adapter_files import CONFIG, TENSORS
from galley.formats.json_file import read_json
from galley.formats.safetensors import StoredTensor, read_safetensors
from galley.formats.weights import DenseWeight

N = TypeVar("N")

_PREFIX: Final = "base_model.model."
_FACTOR: Final = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_MOST_RANK: Final = 4096

_IGNORED: Final = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "lora_dropout",
        "lora_ga_config",
        "loftq_config",
        "low_cpu_mem_usage",
        "peft_version",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
        "velora_config",
    }
)
"""Ignored fields: about training, or about which layers have factors, which the tensors show."""

_HONORED: Final = frozenset(
    {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"}
)
_NOTHING: Final[tuple[object, ...]] = (None, False, "", "none", [], {})
_PLAIN_STARTS: Final = (None, True, False, "gaussian", "eva", "orthogonal", "mica")
"""Values of ``init_lora_weights`` that do not change the model's own weights."""


class LowRank(NamedTuple):
    """The term that an adapter adds to a linear layer: scale * b (a x).

    Attributes:
        a: [rank, inputs].
        b: [outputs, rank].
        scale: factor of the product.
    """

    a: DenseWeight
    b: DenseWeight
    scale: float


AdapterWeights: TypeAlias = Mapping[str, LowRank]
"""Name of a linear layer's weight in the model -> the LoRA factors added to its product."""


class AdapterConfig(NamedTuple):
    """Properties of the factors in ``adapter_config.json``.

    Attributes:
        rank: rank of modules that ``ranks`` does not name.
        alpha: alpha of modules that ``alphas`` does not name; the scale is alpha / rank.
        stabilized: whether the scale is alpha / sqrt(rank) instead.
        ranks, alphas: patterns of module names -> values for these modules.
    """

    rank: int
    alpha: float
    stabilized: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        """Return the rank that a module's factors should have."""
        return _of(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        """Return the scale of a module's product."""
        rank, alpha = self.rank_of(module), _of(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.stabilized else rank)


def _of(patterns: Mapping[str, N], module: str, default: N) -> N:
    """Return the value of the first pattern that matches all of the name or, without ``^``, its last parts.

    This is how PEFT matches patterns.
    """
    for pattern, value in patterns.items():
        whole = pattern.removeprefix("^")
        if module == whole or (whole == pattern and module.endswith(f".{pattern}")):
            return value
    return default


def read_adapter(folder: Path, shapes: Mapping[str, tuple[int, ...]], rank: int) -> AdapterWeights:
    """Read the adapter in ``folder`` and check all its values, which are views of the mapped file.

    Args:
        folder: as PEFT's ``save_pretrained`` writes it.
        shapes: linear layers that adapters may add to: weight's name -> [outputs, inputs].
        rank: the maximum rank that there is room for.

    Raises:
        CheckpointError: a file is missing or damaged, or a tensor does not fit the model.
        UnsupportedModel: it needs a feature that Galley does not implement.
    """
    config = read_config(folder)
    path = folder / TENSORS
    sides: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in read_safetensors(path).items():
        found = _FACTOR.fullmatch(name.removeprefix(_PREFIX))
        if found is None:
            raise UnsupportedModel(
                f"{path}: {name}: is not a LoRA factor (lora_A.weight, lora_B.weight) of a linear layer; "
                "modules_to_save, embeddings, DoRA and biases are not supported"
            )
        sides.setdefault(found["module"], {})[found["side"]] = tensor
    if not sides:
        raise CheckpointError("contains no LoRA factors", file=str(path))
    return {
        f"{module}.weight": _pair(module, factors, config, shapes, rank)
        for module, factors in sides.items()
    }


def read_config(folder: Path) -> AdapterConfig:
    """Read ``adapter_config.json``.

    Raises:
        CheckpointError: it is missing, or a field is malformed.
        UnsupportedModel: a field needs a feature that Galley does not implement; the message names it.
    """
    path = folder / CONFIG
    fields = read_json(path)
    if fields.get("peft_type") != "LORA":
        raise UnsupportedModel(
            f"{path}: peft_type is {shown(fields.get('peft_type'))}; LORA is supported"
        )
    start = fields.get("init_lora_weights")
    if not any(start is known or start == known for known in _PLAIN_STARTS):
        raise UnsupportedModel(
            f"{path}: init_lora_weights is {shown(start)}, which changes the model's own weights; convert "
            "the adapter to plain LoRA with path_initial_model_for_weight_conversion"
        )
    for name, value in fields.items():
        known = name in _IGNORED or name in _HONORED or name == "init_lora_weights"
        if not known and not _has_no_effect(name, value, fields):
            raise UnsupportedModel(
                f"{path}: {shown(name)} is {shown(value)}, which is not supported"
            )
    return AdapterConfig(
        rank=_rank(path, "r", fields.get("r")),
        alpha=_alpha(path, "lora_alpha", fields.get("lora_alpha")),
        stabilized=_flag(path, "use_rslora", fields.get("use_rslora", False)),
        ranks=_patterns(path, "rank_pattern", fields, _rank),
        alphas=_patterns(path, "alpha_pattern", fields, _alpha),
    )


def _has_no_effect(name: str, value: Any, fields: Mapping[str, Any]) -> bool:
    """Return whether a field is empty, or a detail of a feature that is off.

    PEFT saves every field of its configuration, including those at their defaults: ``qalora_group_size``
    is 16 where ``use_qalora`` is false, and ``megatron_core`` is a module's name where
    ``megatron_config`` is null.
    """
    if value in _NOTHING:
        return True
    feature = name.partition("_")[0]
    switches = [s for s in (f"use_{feature}", f"{feature}_config") if s in fields and s != name]
    return bool(switches) and all(fields[switch] in (None, False) for switch in switches)


def _pair(
    module: str,
    factors: Mapping[str, StoredTensor],
    config: AdapterConfig,
    shapes: Mapping[str, tuple[int, ...]],
    most: int,
) -> LowRank:
    one = next(iter(factors.values()))
    shape = shapes.get(f"{module}.weight")
    if shape is None:
        raise one.wrong(
            f"the model has no linear layer {shown(module)} that supports adapters (the output layer and "
            "embeddings do not)"
        )
    if len(factors) < 2:
        other = "B" if "A" in factors else "A"
        raise one.wrong(f"its other factor, lora_{other}.weight, is missing")
    rank, (outputs, inputs) = config.rank_of(module), shape
    if rank > most:
        raise one.wrong(
            f"has rank {rank}, but adapter_rank allows {most}; set adapter_rank to {rank}"
        )
    for tensor, expected in ((factors["A"], (rank, inputs)), (factors["B"], (outputs, rank))):
        if tensor.shape != expected:
            raise tensor.wrong(
                f"has shape {list(tensor.shape)}, expected {list(expected)} with rank {rank}"
            )
    return LowRank(_finite(factors["A"]), _finite(factors["B"]), config.scale_of(module))


def _finite(tensor: StoredTensor) -> DenseWeight:
    """Return the tensor as floats; raise CheckpointError if a value is infinite or NaN.

    A number is finite if some bit of its exponent is not set.
    """
    weight = tensor.dense()
    kind, exponent = {
        "F32": ("<u4", 0x7F800000),
        "BF16": ("<u2", 0x7F80),
        "F16": ("<u2", 0x7C00),
    }[weight.dtype]
    bits = np.frombuffer(weight.data.tobytes(), kind)
    if np.any(bits & exponent == exponent):
        raise tensor.wrong("contains values that are not finite")
    return weight


def _rank(path: Path, name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= _MOST_RANK:
        raise CheckpointError(
            f"is {shown(value)}, must be a whole number from 1 to {_MOST_RANK}",
            file=str(path),
            field=name,
        )
    return value


def _alpha(path: Path, name: str, value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= 1e6:
        raise CheckpointError(
            f"is {shown(value)}, must be a number up to 1e6", file=str(path), field=name
        )
    return float(value)


def _flag(path: Path, name: str, value: Any) -> bool:
    if value not in (True, False, None):
        raise CheckpointError(
            f"is {shown(value)}, must be true or false", file=str(path), field=name
        )
    return bool(value)


def _patterns(path: Path, name: str, fields: Mapping[str, Any], read: Any) -> dict[str, Any]:
    """Read pattern -> number; only names of modules or their ends are accepted as patterns."""
    value = fields.get(name) or {}
    if not isinstance(value, dict):
        raise CheckpointError(f"is {shown(value)}, must be an object", file=str(path), field=name)
    for pattern in value:
        if not re.fullmatch(r"\^?[\w.]+", pattern):
            raise UnsupportedModel(
                f"{path}: {name}: {shown(pattern)} is a regular expression; only names of modules are "
                "supported"
            )
    return {pattern: read(path, f"{name}: {pattern}", number) for pattern, number in value.items()}
