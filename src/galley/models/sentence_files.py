"""What sentence-transformers' files say of an embedding model: ``modules.json`` and what it names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from galley.errors import CheckpointError, UnsupportedModel, shown
from galley.formats.json_file import read_file, read_json
from galley.formats.quantized import typed_weights
from galley.formats.safetensors import read_safetensors
from galley.models.embedding import ACTIVATIONS, Head, Layer, Pooling, floats_of
from galley.models.fields import Fields

MODULES_FILE: Final = "modules.json"
PROMPTS_FILE: Final = "config_sentence_transformers.json"
LENGTH_FILE: Final = "sentence_bert_config.json"

_POOLINGS: Final[Mapping[str, Pooling]] = {
    "cls": "cls",
    "mean": "mean",
    "max": "max",
    "lasttoken": "last",
}
_FLAGS: Final[Mapping[str, Pooling | None]] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_sqrt_len_tokens": None,
    "pooling_mode_weightedmean_tokens": None,
}
"""As ``1_Pooling/config.json`` has them; None: not supported."""


def read_sentence_files(folder: Path, config: Mapping[str, Any], default: Pooling) -> Head:
    """The head that the files of the checkpoint in ``folder`` describe.

    Without ``modules.json`` rows are pooled by ``default`` and vectors have length 1.

    Raises:
        CheckpointError: a file is missing or wrong.
        UnsupportedModel: it has a module, or a kind of pooling, that Galley does not do.
    """
    dimensions = Fields(config).tokens("matryoshka_dimensions")
    path = folder / MODULES_FILE
    if not path.exists():
        return Head(task="embed", pooling=(default,), normalize=True, dimensions=dimensions)
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
                raise UnsupportedModel(f"{path}: module {shown(kind)} in {shown(name)}")
    prompts, chosen = _prompts(folder / PROMPTS_FILE)
    length = folder / LENGTH_FILE
    limits = Fields(read_json(length) if length.exists() else {}, file=str(length))
    return Head(
        task="embed",
        pooling=pooling or (default,),
        layers=tuple(layers),
        normalize=normalize,
        max_tokens=limits.count("max_seq_length") if limits.has("max_seq_length") else None,
        dimensions=dimensions,
        prompts=prompts,
        default_prompt=chosen,
    )


def _modules(path: Path) -> list[tuple[str, str]]:
    """(kind, folder) of each, in order."""
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
            raise CheckpointError("is no list of modules with type and path", file=str(path))
        found.append((kind.rpartition(".")[2], name))
    return found


def _pooling(path: Path) -> tuple[Pooling, ...]:
    config = Fields(read_json(path), file=str(path))
    if not config.flag("include_prompt", True):
        raise UnsupportedModel(f"{path}: include_prompt false is not supported")
    if config.has("pooling_mode"):
        mode = config.choice(("pooling_mode",), tuple(_POOLINGS), default="mean")
        return (_POOLINGS[mode],)
    asked = [name for name in _FLAGS if config.flag(name, False)]
    poolings = [pooling for name in asked if (pooling := _FLAGS[name]) is not None]
    if not asked or len(poolings) < len(asked):
        wrong = [name for name in asked if _FLAGS[name] is None]
        raise UnsupportedModel(f"{path}: pooling by {', '.join(wrong) or 'nothing'}")
    return tuple(poolings)


def _dense(folder: Path) -> Layer:
    config = Fields(read_json(folder / "config.json"), file=str(folder / "config.json"))
    kind = str(read_json(folder / "config.json").get("activation_function", "Tanh"))
    activation = kind.rpartition(".")[2].lower()
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(f"{folder}: activation_function {shown(kind)}")
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
    """Name -> prompt, and the name of that which is put before all texts."""
    if not path.exists():
        return {}, None
    config = read_json(path)
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(p, str) for p in prompts.values()):
        raise CheckpointError("is no object of texts", file=str(path), field="prompts")
    chosen = config.get("default_prompt_name")
    if chosen is not None and chosen not in prompts:
        raise CheckpointError(f"is {shown(chosen)}", file=str(path), field="default_prompt_name")
    return prompts, chosen
