"""Whisper in CTranslate2's format, as faster-whisper uses it: ``model.bin``, ``config.json``, a vocabulary.

Values that transformers has in ``config.json`` are derived from the tensors' shapes, and the ids of special
tokens from the vocabulary. Queries, keys and values are one tensor there and several here. An int8 matrix
has a scale for each row, by which its integers are divided.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, cast

import msgspec
import numpy as np

from galley.errors import CheckpointError, UnsupportedModel
from galley.formats import digests
from galley.formats.checkpoint import check_eos
from galley.formats.ctranslate2_file import (
    MODEL_FILE,
    CTranslate2File,
    Variable,
    read_ctranslate2,
)
from galley.formats.json_file import read_file, read_json
from galley.formats.stored import Matrix, UnpackedWeights, as_floats
from galley.formats.weights import (
    DENSE_KINDS,
    WEIGHT_TYPES,
    DenseWeight,
    Floats,
    IntWeight,
    TensorInfo,
    Weight,
    WeightKind,
    Weights,
    WeightType,
)
from galley.types import SamplingDefaults

WHISPER_SPEC: Final = "WhisperSpec"
_INT8: Final = WeightKind("int8", 0, "F32")
_ENGLISH_ONLY: Final = 51864
"""Vocabulary size of English-only checkpoints, although the vocabulary contains language tokens."""
_MAX_INITIAL_TIMESTAMP: Final = 50
"""The latest first timestamp, in steps of 20 ms: within the first second, as in openai/whisper."""
_LANGUAGE: Final = re.compile(r"<\|[a-z]{2,3}\|>")

_OUTPUT: Final = "decoder/projection"
_SIDES: Final = ("encoder", "decoder")
_FIXED: Final[Mapping[str, tuple[str, ...]]] = {
    "decoder/embeddings": ("model.decoder.embed_tokens",),
    _OUTPUT: ("proj_out",),
    **{f"encoder/{conv}": (f"model.encoder.{conv}",) for conv in ("conv1", "conv2")},
    **{f"{side}/layer_norm": (f"model.{side}.layer_norm",) for side in _SIDES},
    **{f"{side}/position_encodings": (f"model.{side}.embed_positions",) for side in _SIDES},
}
_OF_LAYER: Final[Mapping[str, tuple[str, ...]]] = {
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "ffn/layer_norm": ("final_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
}
"""CTranslate2's module -> Galley's modules, whose rows are stored one after another in it."""
_PARTS: Final = {
    "weight": "weight",
    "gamma": "weight",
    "encodings": "weight",
    "bias": "bias",
    "beta": "bias",
}
_LAYER: Final = re.compile(r"(encoder|decoder)/layer_(\d{1,9})/(.+)")


@dataclass(frozen=True, slots=True)
class CTranslate2Checkpoint:
    """A CTranslate2 checkpoint; see :class:`galley.formats.reader.CheckpointReader`.

    Attributes:
        config: derived from the tensors' shapes, with the field names of ``config.json``.
        generation: derived from ``config.json`` and the vocabulary, with the field names of
            ``generation_config.json``.
    """

    folder: Path
    file: CTranslate2File = field(repr=False)
    config: Mapping[str, Any]
    generation: Mapping[str, Any] = field(repr=False)
    eos_token_ids: tuple[int, ...]
    defaults: SamplingDefaults

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a checkpoint. Raises CheckpointError or UnsupportedModel, naming the file and the field."""
        file = read_ctranslate2(folder / MODEL_FILE)
        if file.spec != WHISPER_SPEC:
            raise UnsupportedModel(
                f"{file.path}: is a CTranslate2 model of type {file.spec}; only {WHISPER_SPEC} is "
                "supported. Use the checkpoint that it was converted from, or engine ctranslate2"
            )
        config = _config(file)
        generation = _generation(folder, config["vocab_size"])
        return cls(
            folder=folder,
            file=file,
            config=config,
            generation=generation,
            eos_token_ids=(generation["eos_token_id"],),
            defaults=SamplingDefaults(),
        )

    def check_token_ids(self, vocab_size: int) -> None:
        """Raise CheckpointError if an end-of-sequence id is not a token of the model."""
        check_eos(self.eos_token_ids, vocab_size, str(self.folder))

    def weights(self) -> Weights:
        """Return all tensors by transformers' names; each is copied from the mapped file on access."""
        return UnpackedWeights({}, _matrices(self.file), ())

    def content_hash(self) -> str:
        """Return a hash; see :class:`galley.formats.reader.CheckpointReader`."""
        return digests.content_hash([self.file.path])

    def outline(self) -> str:
        """Return a hash; see :class:`galley.formats.reader.CheckpointReader`."""
        return digests.outline([(self.file.path, self.file.header)])

    def state(self) -> str:
        """Return a hash; see :class:`galley.formats.reader.CheckpointReader`."""
        return digests.state([(self.file.path, self.file.header)])


def _config(file: CTranslate2File) -> dict[str, Any]:
    def size(name: str, dimensions: int, axis: int) -> int:
        shape = file.get(name).shape
        if len(shape) != dimensions:
            raise file.wrong(name, f"has {len(shape)} dimensions, expected {dimensions}")
        return shape[axis]

    config: dict[str, Any] = {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "vocab_size": size("decoder/embeddings/weight", 2, 0),
        "d_model": size("decoder/embeddings/weight", 2, 1),
        "num_mel_bins": size("encoder/conv1/weight", 3, 1),
        "max_source_positions": size("encoder/position_encodings/encodings", 2, 0),
        "max_target_positions": size("decoder/position_encodings/encodings", 2, 0),
        "tie_word_embeddings": _is_tied(file),
    }
    for side in _SIDES:
        found = (_LAYER.match(name) for name in file.names())
        layers = {int(match[2]) for match in found if match and match[1] == side}
        config[f"{side}_layers"] = len(layers)
        config[f"{side}_attention_heads"] = file.whole(f"{side}/num_heads")
        config[f"{side}_ffn_dim"] = size(f"{side}/layer_0/ffn/linear_0/weight", 2, 0)
    return config


def _is_tied(file: CTranslate2File) -> bool:
    return file.get(f"{_OUTPUT}/weight") is file.get("decoder/embeddings/weight")


def _generation(folder: Path, vocab_size: int) -> dict[str, Any]:
    ids = {token: i for i, token in enumerate(read_vocabulary(folder))}

    def token(*names: str) -> int:
        known = [ids[name] for name in names if name in ids]
        if not known:
            raise CheckpointError(
                "the vocabulary has no such token",
                file=str(_vocabulary_file(folder)),
                field=names[0],
            )
        return known[0]

    config = read_json(folder / "config.json")
    end = token("<|endoftext|>")
    generation: dict[str, Any] = {
        "decoder_start_token_id": token("<|startoftranscript|>"),
        "eos_token_id": end,
        "prev_sot_token_id": token("<|startofprev|>"),
        "no_timestamps_token_id": token("<|notimestamps|>"),
        "max_initial_timestamp_index": _MAX_INITIAL_TIMESTAMP,
    }
    for here, there in (
        ("suppress_tokens", "suppress_ids"),
        ("begin_suppress_tokens", "suppress_ids_begin"),
        ("alignment_heads", "alignment_heads"),
    ):
        if config.get(there) is not None:
            generation[here] = config[there]
    if vocab_size != _ENGLISH_ONLY:
        tasks = ("translate", "transcribe")
        generation["task_to_id"] = {task: token(f"<|{task}|>") for task in tasks}
        generation["lang_to_id"] = {
            name: i for name, i in ids.items() if i > end and _LANGUAGE.fullmatch(name)
        }
    return generation


def _vocabulary_file(folder: Path) -> Path:
    """Return the path of the vocabulary.

    The current converter writes a list in JSON, earlier ones one token per line.
    """
    made = folder / "vocabulary.json"
    return made if made.exists() else folder / "vocabulary.txt"


def read_vocabulary(folder: Path) -> list[str]:
    """Return the tokens of the model in a folder, by id. Raises CheckpointError if they are missing."""
    path = _vocabulary_file(folder)
    data = read_file(path)
    try:
        if path.suffix == ".json":
            return msgspec.json.decode(data, type=list[str])
        return data.decode().removesuffix("\n").split("\n")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"is not a list of tokens: {error}", file=str(path)) from None


class _Rows(NamedTuple):
    """A tensor of the model: ``rows`` rows of a variable, from the ``first`` one on."""

    file: CTranslate2File
    variable: Variable
    scale: Variable | None
    name: str
    first: int
    rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.variable.shape[1:])

    @property
    def info(self) -> TensorInfo:
        return TensorInfo(self.shape, DENSE_KINDS.get(self.variable.dtype, self._kind_of_integers))

    @property
    def _kind_of_integers(self) -> WeightKind:
        """Kind of an int8 tensor in the model: matrices stay int8; a convolution's kernel needs floats."""
        return _INT8 if len(self.shape) == 2 else DENSE_KINDS["F32"]

    def _data(self) -> Any:
        """Return a copy of the rows, because the file's variables may be unaligned."""
        size = self.variable.data.nbytes // self.variable.shape[0]
        return self.variable.data[self.first * size : (self.first + self.rows) * size].copy()

    def read(self) -> Weight:
        """Read the tensor. Raises CheckpointError if a scale is not a positive number."""
        data = self._data()
        if self.scale is None:
            return DenseWeight(self.name, cast(WeightType, self.variable.dtype), self.shape, data)
        scales = self._scales(self.scale)
        q = data.view(np.int8).reshape(self.rows, -1)
        if len(self.shape) != 2:
            return DenseWeight(self.name, "F32", self.shape, as_floats(q * scales, "F32"))
        return IntWeight(self.name, 8, q, q.shape[1], scales, None, "F32")

    def _scales(self, scale: Variable) -> Floats:
        """Return the scales [rows, 1], by which integers are multiplied."""
        divisors = scale.data.copy().view(np.float32)[self.first : self.first + self.rows, None]
        with np.errstate(divide="ignore", over="ignore"):
            scales: Floats = np.float32(1) / divisors
        if not (np.isfinite(scales) & (scales > 0)).all():
            raise self.file.wrong(scale.name, "has a scale that is not a positive number")
        return scales


def _matrices(file: CTranslate2File) -> dict[str, Matrix]:
    made: dict[str, Matrix] = {}
    for rows in _all_rows(file):
        stored = rows.variable.dtype.lower()
        change = (
            "its kernel does not accept integers" if rows.scale and len(rows.shape) != 2 else ""
        )
        size = rows.variable.data.nbytes // rows.variable.shape[0] * rows.rows
        made[rows.name] = Matrix(rows.info, partial(_Rows.read, rows), stored, size, change)
    return made


def _all_rows(file: CTranslate2File) -> Iterator[_Rows]:
    tied = _is_tied(file)
    for name in file.names():
        variable = file.get(name)
        module, _, part = name.rpartition("/")
        if not variable.shape or part == "weight_scale" or (tied and module == _OUTPUT):
            continue
        modules = _modules(module)
        if part not in _PARTS or not modules:
            raise file.wrong(name, "does not belong to any Whisper model that Galley supports")
        scale = _scale(file, name, variable)
        count, left = divmod(variable.shape[0], len(modules))
        if left or not count:
            raise file.wrong(name, f"has {variable.shape[0]} rows for {len(modules)} tensors")
        for i, made in enumerate(modules):
            if part == "bias" and made.endswith(".k_proj"):
                continue  # zeros added by CTranslate2; Whisper's keys have no bias
            yield _Rows(file, variable, scale, f"{made}.{_PARTS[part]}", i * count, count)


def _scale(file: CTranslate2File, name: str, variable: Variable) -> Variable | None:
    if variable.dtype in WEIGHT_TYPES:
        return None
    if variable.dtype != "I8" or not name.endswith("/weight"):
        raise UnsupportedModel(
            f"{file.path}: {name} is of type {variable.dtype}; supported are float32, float16, bfloat16 "
            "and int8; convert the model with one of these"
        )
    scale = file.get(f"{name}_scale")
    if scale.dtype != "F32" or scale.shape != variable.shape[:1]:
        raise file.wrong(
            scale.name, f"is {scale.dtype} {list(scale.shape)}, expected F32 [{variable.shape[0]}]"
        )
    return scale


def _modules(module: str) -> tuple[str, ...]:
    if (layer := _LAYER.fullmatch(module)) is not None:
        names = _OF_LAYER.get(layer[3], ())
        return tuple(f"model.{layer[1]}.layers.{layer[2]}.{name}" for name in names)
    return _FIXED.get(module, ())
