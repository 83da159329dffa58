"""A model repository in Triton's layout: ``NAME/VERSION/model.onnx`` and ``NAME/config.pbtxt``.

Of the configuration, which is a ModelConfig message of Triton's ``model_config.proto`` as text, the fields
that are declared here are honored; any other is refused by name.
"""

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from galley.errors import (
    CheckpointError,
    ModelNotFound,
    SettingsError,
    UnsupportedModel,
    pip_install,
)
from galley.settings.engine_choice import NATIVE_ENGINE, ONNX_ENGINE, engine_of

CONFIG_FILE: Final = "config.pbtxt"

_MOST_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)

_DATATYPES: Final = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "STRING"),
)
_ENUMS: Final = {
    "DataType": {
        f"TYPE_{name}": number for number, name in enumerate(("INVALID", *_DATATYPES, "BF16"))
    },
    "Kind": {"KIND_AUTO": 0, "KIND_GPU": 1, "KIND_CPU": 2, "KIND_MODEL": 3},
    "TimeoutAction": {"REJECT": 0, "DELAY": 1},
}
_MESSAGES: Final = {
    "ModelConfig": (
        "1 name string",
        "2 platform string",
        "17 backend string",
        "3 version_policy VersionPolicy",
        "4 max_batch_size int32",
        "5 input ModelInput repeated",
        "6 output ModelOutput repeated",
        "7 instance_group InstanceGroup repeated",
        "8 default_model_filename string",
        "11 dynamic_batching DynamicBatching",
        "15 model_warmup Warmup repeated",
    ),
    "VersionPolicy": ("1 latest Latest oneof", "2 all All oneof", "3 specific Specific oneof"),
    "Latest": ("1 num_versions uint32",),
    "All": (),
    "Specific": ("1 versions int64 repeated",),
    "ModelInput": ("1 name string", "2 data_type DataType", "4 dims int64 repeated"),
    "ModelOutput": ("1 name string", "2 data_type DataType", "3 dims int64 repeated"),
    "InstanceGroup": ("1 name string", "2 count int32", "4 kind Kind"),
    "DynamicBatching": (
        "1 preferred_batch_size int32 repeated",
        "2 max_queue_delay_microseconds uint64",
        "4 priority_levels uint64",
        "5 default_priority_level uint64",
        "6 default_queue_policy QueuePolicy",
    ),
    "QueuePolicy": (
        "1 timeout_action TimeoutAction",
        "2 default_timeout_microseconds uint64",
        "3 allow_timeout_override bool",
        "4 max_queue_size uint32",
    ),
    "Warmup": (
        "1 name string",
        "2 batch_size uint32",
        "3 inputs WarmupInput map",
        "4 count uint32",
    ),
    "WarmupInput": (
        "1 data_type DataType",
        "2 dims int64 repeated",
        "3 zero_data bool oneof",
        "4 random_data bool oneof",
    ),
}

_ENGINES: Final = {
    "onnxruntime_onnx": ONNX_ENGINE,
    "onnxruntime": ONNX_ENGINE,
    **dict.fromkeys(("fil", "xgboost", "lightgbm", "sklearn", ""), "auto"),
}
"""Platform or backend -> engine."""

Own = Mapping[str, Any]
"""Settings of one model."""


def read_repository(folder: str) -> Mapping[str, Own]:
    """Return the settings of each model version in a repository, by the name under which it is served.

    The latest version of a model is NAME, and another one that its version policy serves NAME:VERSION.

    Raises:
        SettingsError: the folder cannot be read, or has no model.
        CheckpointError, UnsupportedModel: a model or its configuration cannot be served.
    """
    try:
        names = sorted(p.name for p in _root(folder).iterdir() if p.is_dir())
    except OSError as error:
        raise SettingsError(
            f"model_repository: {folder} cannot be read: {error.strerror}"
        ) from error
    found: dict[str, Own] = {}
    for name in names:
        if not name.startswith("."):
            found.update(read_model(folder, name))
    if not found:
        raise SettingsError(f"model_repository: {folder} has no models (NAME/VERSION/model.onnx)")
    return found


def read_model(folder: str, name: str) -> Mapping[str, Own]:
    """Return the settings of each served version of one model in a repository; see :func:`read_repository`.

    Raises:
        ModelNotFound: there is no such folder.
        CheckpointError, UnsupportedModel: the model or its configuration cannot be served.
    """
    path = _root(folder) / name
    if not _NAME.fullmatch(name) or not path.is_dir():
        raise ModelNotFound(f"the model repository has no model {name[:100]!r}")
    file = path / CONFIG_FILE
    config = _parsed(file) if file.is_file() else None
    versions = sorted(int(p.name) for p in path.iterdir() if p.is_dir() and p.name.isdecimal())
    versions = [version for version in versions if version > 0]
    if config is not None:
        versions = _by_policy(config.version_policy, versions, file)
        if config.name not in ("", name):
            raise CheckpointError(
                f"is {config.name!r}, but the folder is {name!r}", file=str(file), field="name"
            )
    else:
        versions = versions[-1:]
    if not versions:
        raise CheckpointError("has no folder 1, 2, ... with a version of the model", file=str(path))
    own = {} if config is None else _own(config, file)
    latest = versions[-1]
    return {
        name if version == latest else f"{name}:{version}": {
            **own,
            "model": _model(
                path / str(version), "" if config is None else config.default_model_filename
            ),
        }
        for version in versions
    }


def version_of(repository: str, model: str) -> str:
    """Return the version of a model in a repository; "1" for a model elsewhere."""
    if is_in_repository(repository, model):
        return Path(model).relative_to(_root(repository)).parts[1]
    return "1"


def is_in_repository(repository: str, model: str) -> bool:
    """Return whether a model is a version in a repository."""
    if not repository or not Path(model).is_relative_to(_root(repository)):
        return False
    return len(Path(model).relative_to(_root(repository)).parts) > 1


def _root(folder: str) -> Path:
    return Path(folder).expanduser().absolute()


def _model(folder: Path, filename: str) -> str:
    """Return the file or folder of a version. Raises CheckpointError if it has no model."""
    path = folder / filename if filename else folder
    if filename and (Path(filename).name != filename or not path.is_file()):
        raise CheckpointError(
            f"has no file {filename!r} (default_model_filename)", file=str(folder)
        )
    served = engine_of(str(path)) != NATIVE_ENGINE or (folder / "config.json").is_file()
    if not served:
        raise CheckpointError(
            "has no model: model.onnx, or a model of XGBoost (.json, .ubj), LightGBM (.txt) or "
            "scikit-learn (.skops)",
            file=str(path),
        )
    return str(path)


def _parsed(file: Path) -> Any:
    """Parse a configuration. Raises CheckpointError for a field that is not honored."""
    try:
        from google.protobuf import text_format

        messages = importlib.import_module("galley.formats.declared_messages")
    except ImportError as error:
        raise SettingsError(
            f"{file} needs protobuf, which cannot be imported ({error}): {pip_install('onnx')}"
        ) from error
    if file.stat().st_size > _MOST_BYTES:
        raise CheckpointError(f"is larger than {_MOST_BYTES} bytes", file=str(file))
    config = messages.message_classes("inference", _MESSAGES, _ENUMS)["ModelConfig"]()
    try:
        text_format.Parse(file.read_text(encoding="utf-8"), config)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{error} Fields that are not honored are refused: leave them out", file=str(file)
        ) from error
    return config


def _by_policy(policy: Any, versions: list[int], file: Path) -> list[int]:
    if policy.HasField("all"):
        return versions
    if policy.HasField("specific"):
        missing = sorted(set(policy.specific.versions) - set(versions))
        if missing:
            raise CheckpointError(
                f"there is no version {missing[0]}", file=str(file), field="version_policy.specific"
            )
        return sorted(set(policy.specific.versions))
    return versions[-(policy.latest.num_versions or 1) :]


def _own(config: Any, file: Path) -> Own:
    """Return the settings that a configuration stands for."""
    named = {config.platform, config.backend} - {""} or {""}
    for name in named:
        if name not in _ENGINES:
            raise UnsupportedModel(
                f"{file}: platform or backend {name!r} is not supported; convert the model to ONNX"
            )
    engines = {_ENGINES[name] for name in named}
    if len(engines) > 1:
        raise CheckpointError(
            f"is {config.backend!r}, but platform is {config.platform!r}",
            file=str(file),
            field="backend",
        )
    for group in config.instance_group:
        if group.kind in (1, 3):
            raise CheckpointError(
                "instances run on CPU threads; give KIND_CPU, or leave kind out",
                file=str(file),
                field="instance_group",
            )
    if config.max_batch_size < 0:
        raise CheckpointError(f"is {config.max_batch_size}", file=str(file), field="max_batch_size")
    batching = config.dynamic_batching
    own: dict[str, Any] = {
        "engine": engines.pop(),
        "engine_options": json.dumps(_options(config, file)),
    }
    if batching.default_queue_policy.max_queue_size:
        own["max_queue"] = batching.default_queue_policy.max_queue_size
    return own


def _options(config: Any, file: Path) -> Mapping[str, Any]:
    batched = config.max_batch_size > 0
    options: dict[str, Any] = {
        "declared_inputs": _specs(config.input, batched, file),
        "declared_outputs": _specs(config.output, batched, file),
    }
    # Triton's count is 1 if a group leaves it out.
    instances = sum(group.count or 1 for group in config.instance_group)
    if instances > 1:
        options["instances"] = instances
    if config.model_warmup:
        options["warmup"] = _warmups(config, batched, file)
    if not batched:
        return options | {"batch_axis": "none"} | _queue(config.dynamic_batching, file)
    options |= {"batch_axis": "first", "max_batch_size": config.max_batch_size, "limit_rows": True}
    batching = config.dynamic_batching
    if batching.max_queue_delay_microseconds:
        options["max_queue_delay"] = batching.max_queue_delay_microseconds / 1e6
    if batching.preferred_batch_size:
        options["preferred_batch_size"] = list(batching.preferred_batch_size)
    return options | _queue(batching, file)


def _queue(batching: Any, file: Path) -> dict[str, Any]:
    """Return the options of priorities and of time limits."""
    options: dict[str, Any] = {}
    levels, level = batching.priority_levels, batching.default_priority_level
    if levels or level:
        if not 1 <= level <= levels:
            remedy = f"give a level from 1 to {levels}" if levels else "give priority_levels, too"
            raise CheckpointError(
                f"is {level}, but priority_levels is {levels}: {remedy}",
                file=str(file),
                field="dynamic_batching.default_priority_level",
            )
        options |= {"priority_levels": levels, "default_priority": level}
    policy = batching.default_queue_policy
    if policy.timeout_action:
        raise CheckpointError(
            "is DELAY, and only REJECT is supported: leave it out",
            file=str(file),
            field="default_queue_policy.timeout_action",
        )
    if policy.default_timeout_microseconds:
        options["timeout"] = policy.default_timeout_microseconds / 1e6
    return options


def _warmups(config: Any, batched: bool, file: Path) -> list[Mapping[str, Any]]:
    """Return the option ``warmup``."""
    least, most = (1, config.max_batch_size) if batched else (0, 1)
    found: list[Mapping[str, Any]] = []
    for one in config.model_warmup:
        if not least <= one.batch_size <= most:
            raise CheckpointError(
                f"is {one.batch_size}, but max_batch_size is {config.max_batch_size}: give {least} to "
                f"{most}",
                file=str(file),
                field="model_warmup.batch_size",
            )
        rows = [one.batch_size] if batched else []
        inputs = [_warmup_input(name, one.inputs[name], rows, file) for name in sorted(one.inputs)]
        found.append({"inputs": inputs, "count": one.count or 1})
    return found


def _warmup_input(name: str, given: Any, rows: list[int], file: Path) -> Mapping[str, Any]:
    if any(length < 0 for length in given.dims):
        raise CheckpointError(
            f"are {[*given.dims]} for {name!r}: give the lengths to compute",
            file=str(file),
            field="model_warmup.inputs.dims",
        )
    return {
        "name": name,
        "datatype": _datatype(name, given.data_type, file),
        "shape": [*rows, *given.dims],
        "random": given.random_data,
    }


def _specs(declared: Sequence[Any], batched: bool, file: Path) -> list[Mapping[str, Any]]:
    return [
        {
            "name": one.name,
            "datatype": _datatype(one.name, one.data_type, file),
            "shape": [*([-1] if batched else []), *one.dims],
        }
        for one in declared
    ]


def _datatype(name: str, number: int, file: Path) -> str:
    """Return the type of an input or output, as the protocol names it."""
    names = {number: name.removeprefix("TYPE_") for name, number in _ENUMS["DataType"].items()}
    datatype = names[number]
    if datatype not in _DATATYPES:
        raise CheckpointError(f"{name!r} is TYPE_{datatype}", file=str(file), field="data_type")
    return "BYTES" if datatype == "STRING" else datatype
