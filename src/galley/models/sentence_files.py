"""Reading of an embedding model's sentence-transformers files: ``modules.json`` and what it names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from galley.errors import CheckpointError, UnsupportedModel, shown
from galley.formats.json_file import read_file, read_json
from galley.formats.quantized import typed_weights
from galley.formats.safetensors import read_safetensors
from galley.formats.sentence_config import read_sentence_config
from galley.models.embedding import ACTIVATIONS, Head, Layer, Pooling, floats_of
from galley.models.fields import FILE, Fields
from galley.types import MAX_COUNT

MODULES_FILE: Final = "modules.json"
CONFIG_FILE: Final = "config_sentence_transformers.json"
TOKENIZER_FILE: Final = "tokenizer_config.json"

_POOLINGS: Final[Mapping[str, Pooling]] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weightedmean",
    "lasttoken": "last",
}
"""``pooling_mode`` of ``1_Pooling/config.json`` -> how rows are pooled."""

_FLAGS: Final[Mapping[str, Pooling]] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
"""Flags of releases before 6, in the order in which several vectors are concatenated."""


def read_sentence_files(folder: Path, config: Mapping[str, Any], default: Pooling) -> Head:
    """Read the head that the files of the checkpoint in ``folder`` describe.

    Without ``modules.json``, rows are pooled by ``default`` and vectors have length 1.

    Raises:
        CheckpointError: a file is missing or wrong.
        UnsupportedModel: a module or a type of pooling is not supported.
    """
    dimensions = Fields(config).tokens("matryoshka_dimensions")
    path = folder / MODULES_FILE
    if not path.exists():
        return Head(
            task="embed",
            pooling=(default,),
            normalize=True,
            max_tokens=longest_text(folder),
            dimensions=dimensions,
        )
    pooling: tuple[Pooling, ...] = ()
    layers: list[Layer] = []
    normalize = False
    for kind, name in _modules(path):
        match kind:
            case "Transformer" if not name:
                continue
            case "Pooling":
                pooling = _pooling(folder / name / "config.json")
            case "Dense":
                layers.append(_dense(folder / name))
            case "Normalize":
                normalize = True
            case _:
                raise UnsupportedModel(
                    f"{path}: module {shown(kind)} in {shown(name)} is not supported"
                )
    prompts, chosen = _prompts(folder / CONFIG_FILE)
    own = Fields(_read(folder / CONFIG_FILE), file=str(folder / CONFIG_FILE))
    return Head(
        task="embed",
        pooling=pooling or (default,),
        layers=tuple(layers),
        normalize=normalize,
        max_tokens=longest_text(folder),
        dimensions=dimensions,
        truncate=own.count("truncate_dim") if own.has("truncate_dim") else 0,
        prompts=prompts,
        default_prompt=chosen,
    )


def longest_text(folder: Path) -> int | None:
    """Return the maximum number of tokens in a text; None: no limit.

    It is ``max_seq_length``, or else the tokenizer's ``model_max_length``.

    Raises:
        CheckpointError: a file is damaged.
    """
    said = read_sentence_config(folder).max_tokens
    if said is not None:
        return said
    length = _read(folder / TOKENIZER_FILE).get("model_max_length")
    # transformers writes 10^30 if it knows no limit.
    return int(length) if isinstance(length, int | float) and 1 <= length <= MAX_COUNT else None


def score_activation(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, Path]:
    """Return the activation that CrossEncoder applies to scores, and the file that specifies it.

    Args:
        folder: folder of the checkpoint.
        config: its ``config.json``, which has the activation in releases of sentence-transformers
            before 6.
    """
    path = folder / CONFIG_FILE
    own = config.get("sentence_transformers")
    older = own.get("activation_fn") if isinstance(own, Mapping) else None
    for said, file in (
        (_read(path).get("activation_fn"), path),
        (older or config.get("sbert_ce_default_activation_function"), folder / FILE),
    ):
        if said is not None:
            return str(said), file
    return None, path


def _read(path: Path) -> dict[str, Any]:
    """Read a JSON file; return an empty object if there is none."""
    return read_json(path) if path.exists() else {}


def _modules(path: Path) -> list[tuple[str, str]]:
    """Return (type, folder) of each module, in order."""
    from msgspec import DecodeError
    from msgspec.json import decode

    try:
        listed: Any = decode(read_file(path))
    except (DecodeError, RecursionError) as error:
        raise CheckpointError(f"is not JSON: {error}", file=str(path)) from error
    found = []
    for module in listed if isinstance(listed, list) else [None]:
        kind, name = (module.get(k) if isinstance(module, dict) else None for k in ("type", "path"))
        if not isinstance(kind, str) or not isinstance(name, str) or name != Path(name).name:
            raise CheckpointError("is not a list of modules with type and path", file=str(path))
        found.append((kind.rpartition(".")[2], name))
    return found


def _pooling(path: Path) -> tuple[Pooling, ...]:
    config = Fields(read_json(path), file=str(path))
    if not config.flag("include_prompt", True):
        raise UnsupportedModel(f"{path}: include_prompt false is not supported")
    if not config.has("pooling_mode"):
        return tuple(_FLAGS[name] for name in _FLAGS if config.flag(name, False)) or ("mean",)
    said = read_json(path)["pooling_mode"]
    modes = said if isinstance(said, list) and said else [said]
    if unknown := [mode for mode in modes if not isinstance(mode, str) or mode not in _POOLINGS]:
        raise UnsupportedModel(
            f"{path}: pooling_mode {shown(unknown[0])} is not supported; known: {', '.join(_POOLINGS)}"
        )
    return tuple(_POOLINGS[mode] for mode in modes)


def _dense(folder: Path) -> Layer:
    config = Fields(read_json(folder / "config.json"), file=str(folder / "config.json"))
    kind = str(read_json(folder / "config.json").get("activation_function", "Tanh"))
    activation = kind.rpartition(".")[2].lower()
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(f"{folder}: activation_function {shown(kind)} is not supported")
    path = folder / "model.safetensors"
    if not path.exists():
        raise CheckpointError("does not exist; Galley reads safetensors only", file=str(path))
    tensors = typed_weights(None, read_safetensors(path))
    inputs, outputs = config.count("in_features"), config.count("out_features")
    names: dict[str, tuple[int, ...]] = {"linear.weight": (outputs, inputs)}
    if config.flag("bias", True):
        names["linear.bias"] = (outputs,)
    for name, shape in names.items():
        if name not in tensors or tensors.info(name).shape != shape:
            raise CheckpointError(f"has no shape {list(shape)}", file=str(path), field=name)
    bias = floats_of(tensors["linear.bias"]) if len(names) > 1 else None
    return Layer(floats_of(tensors["linear.weight"]), bias, activation)


def _prompts(path: Path) -> tuple[dict[str, str], str | None]:
    """Return name -> prompt, and the name of the prompt that is put before all texts."""
    if not path.exists():
        return {}, None
    config = read_json(path)
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(p, str) for p in prompts.values()):
        raise CheckpointError("is not an object of strings", file=str(path), field="prompts")
    chosen = config.get("default_prompt_name")
    if chosen is not None and chosen not in prompts:
        raise CheckpointError(f"is {shown(chosen)}", file=str(path), field="default_prompt_name")
    return prompts, chosen
