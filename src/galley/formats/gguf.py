"""A GGUF checkpoint, of one file or split into several: configuration and typed weights."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from galley.errors import CheckpointError, shown
from galley.formats import digests
from galley.formats.checkpoint import check_eos, sampling_defaults
from galley.formats.gguf_blocks import kind_of, weight_of
from galley.formats.gguf_config import config_of, generation_of
from galley.formats.gguf_file import GGUFFile, GGUFTensor, read_gguf, split_files
from galley.formats.gguf_metadata import Metadata
from galley.formats.gguf_names import hf_name, permuted_heads, unpermuted
from galley.formats.gguf_rope import FACTORS, Factors
from galley.formats.json_file import open_file
from galley.formats.weights import (
    IntWeight,
    TensorInfo,
    Weight,
    Weights,
)
from galley.types import SamplingDefaults

_MAX_FACTORS: Final = 1 << 13
_MAX_TENSORS: Final = 1 << 20
"""Maximum tensors of a checkpoint, counting each expert; the largest published ones have a tenth."""


@dataclass(frozen=True, slots=True)
class GGUFCheckpoint:
    """A GGUF checkpoint; see :class:`galley.formats.reader.CheckpointReader`.

    Attributes:
        folder: path of the named file; for a split checkpoint, any of its files.
        files: all files, in order.
        metadata: metadata of the first file.
        config: derived from the metadata, with the field names of ``config.json``.
        generation: likewise, with those of ``generation_config.json``.
    """

    folder: Path
    files: tuple[GGUFFile, ...] = field(repr=False)
    metadata: Metadata = field(repr=False)
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    eos_token_ids: tuple[int, ...]
    defaults: SamplingDefaults

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a checkpoint. Raises CheckpointError or UnsupportedModel, naming the file and the field."""
        files = tuple(_read_split(path))
        metadata = Metadata(files[0].metadata, str(files[0].path))
        tensors = {name: tensor for file in files for name, tensor in file.tensors.items()}
        embedding = tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise CheckpointError(
                "tensor is missing" if embedding is None else "is not a matrix",
                file=metadata.file,
                field="token_embd.weight",
            )
        factors = _rope_factors(files)
        generation = generation_of(metadata)
        return cls(
            folder=path,
            files=files,
            metadata=metadata,
            config=config_of(metadata, tensors.keys(), embedding.shape[0], factors),
            generation=generation,
            eos_token_ids=tuple(generation["eos_token_id"]),
            defaults=sampling_defaults(generation, metadata.file),
        )

    def check_token_ids(self, vocab_size: int) -> None:
        """Raise CheckpointError if an end-of-sequence id is not a token of the model."""
        check_eos(self.eos_token_ids, vocab_size, str(self.folder))

    def weights(self) -> Weights:
        """Return all tensors by Hugging Face's names, mapped; integers are unpacked on access."""
        return _GGUFWeights(self.files, self.metadata, self.config)

    def content_hash(self) -> str:
        """Return a hash; see :class:`galley.formats.reader.CheckpointReader`."""
        return digests.content_hash(file.path for file in self.files)

    def outline(self) -> str:
        """Return a hash; see :class:`galley.formats.reader.CheckpointReader`."""
        return digests.outline(self._headers())

    def state(self) -> str:
        """Return a hash; see :class:`galley.formats.reader.CheckpointReader`."""
        return digests.state(self._headers())

    def _headers(self) -> Iterator[tuple[Path, bytes]]:
        for file in self.files:
            with open_file(file.path) as opened:
                yield file.path, opened.read(file.header)


def _read_split(path: Path) -> Iterator[GGUFFile]:
    """Yield all files of the checkpoint. Raises CheckpointError if they do not belong together."""
    paths = split_files(path)
    seen: set[str] = set()
    for index, part in enumerate(paths):
        file = read_gguf(part)
        said = [file.metadata.get(f"split.{name}") for name in ("no", "count")]
        if said != [index, len(paths)] and (len(paths) > 1 or said[1] not in (None, 0, 1)):
            raise CheckpointError(
                f"is part {said[0]} of {said[1]} by its metadata, but {index} of {len(paths)} by its "
                "name; restore the names that the files were split with",
                file=str(part),
                field="split.no",
            )
        if twice := seen & file.tensors.keys():
            raise CheckpointError("is also in another file", file=str(part), field=sorted(twice)[0])
        seen |= file.tensors.keys()
        yield file


def _bytes_of(file: GGUFFile, tensor: GGUFTensor) -> npt.NDArray[np.uint8]:
    return np.frombuffer(file.mapped, np.uint8, tensor.size, tensor.begin)


def _rope_factors(files: Iterable[GGUFFile]) -> Factors:
    return {
        name: _short_vector(file, name)
        for file in files
        for name in FACTORS
        if name in file.tensors
    }


def _short_vector(file: GGUFFile, name: str) -> list[float]:
    tensor = file.tensors[name]
    if tensor.type.name != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > _MAX_FACTORS:
        raise CheckpointError("is not a short vector of F32", file=str(file.path), field=name)
    return [float(value) for value in _bytes_of(file, tensor).view(np.float32)]


class _Place(NamedTuple):
    """Location of a tensor's values.

    Attributes:
        tensor: tensor of the file.
        file: the file.
        name: name of the tensor in the file.
        shape: shape of the values.
        part: (index, count) of the equal part of the tensor's bytes, if it stacks all experts.
        heads: number of heads of q and k whose rows are permuted; else 0.
    """

    tensor: GGUFTensor
    file: GGUFFile
    name: str
    shape: tuple[int, ...]
    part: tuple[int, int] = (0, 1)
    heads: int = 0


class _GGUFWeights(Weights):
    """Tensors of the files by Hugging Face's names; each is unpacked anew on every access."""

    def __init__(
        self, files: tuple[GGUFFile, ...], metadata: Metadata, config: Mapping[str, Any]
    ) -> None:
        self._places: dict[str, _Place] = {}
        family = metadata.family
        for file in files:
            for name, tensor in file.tensors.items():
                if name in FACTORS:
                    continue
                made = hf_name(name, family.names)
                heads = _heads(file, name, tensor, config) if family.permuted else 0
                places = (
                    _experts(file, name, made, metadata)
                    if "*" in made
                    else {made: _Place(tensor, file, name, _shape(made, tensor), heads=heads)}
                )
                if self._places.keys() & places.keys():
                    raise _wrong(file, name, "occurs twice")
                self._places |= places
                if len(self._places) > _MAX_TENSORS:
                    raise _wrong(file, name, f"has more than {_MAX_TENSORS} tensors of experts")
                if tensor.type.values > 1 and any(len(p.shape) != 2 for p in places.values()):
                    raise _wrong(
                        file,
                        name,
                        f"has {len(tensor.shape)} dimensions, but type {tensor.type.name} is for matrices "
                        "only",
                    )

    def info(self, name: str) -> TensorInfo:
        """Return shape and kind; see :class:`galley.formats.weights.Weights`."""
        place = self._places[name]
        return TensorInfo(place.shape, kind_of(place.tensor.type.name, place.shape[-1]))

    def __getitem__(self, name: str) -> Weight:
        place = self._places[name]
        part, parts = place.part
        data = _bytes_of(place.file, place.tensor).reshape(parts, -1)[part]
        if place.heads:
            data = unpermuted(data.reshape(place.shape[0], -1), place.heads)
        weight = weight_of(name, place.tensor.type, place.shape, data)
        if isinstance(weight, IntWeight):
            _check_scales(weight, place)
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _wrong(file: GGUFFile, name: str, message: str) -> CheckpointError:
    return CheckpointError(message, file=str(file.path), field=name)


def _shape(name: str, tensor: GGUFTensor) -> tuple[int, ...]:
    """Return the tensor's own shape, except for a matrix of one row that files store as a vector."""
    one_row = name.endswith(".shared_expert_gate.weight") and len(tensor.shape) == 1
    return (1, *tensor.shape) if one_row else tensor.shape


def _experts(file: GGUFFile, name: str, made: str, metadata: Metadata) -> dict[str, _Place]:
    """Return the places of the experts of a stacked tensor, whose bytes hold one expert after another.

    Args:
        file: the file that has the tensor.
        name: its name in the file.
        made: name of an expert's tensor, with an asterisk in place of the expert's number.
        metadata: metadata with the number of experts.
    """
    tensor, count = file.tensors[name], metadata.own("expert_count")
    wanted = 2 if name.endswith(".bias") else 3
    if len(tensor.shape) != wanted:
        raise _wrong(
            file,
            name,
            f"has {len(tensor.shape)} dimensions, expected {wanted}, the first of experts",
        )
    if tensor.shape[0] != count:
        raise _wrong(
            file,
            name,
            f"has {tensor.shape[0]} experts, but {metadata.architecture}.expert_count is {shown(count)}",
        )
    if tensor.shape[0] > _MAX_TENSORS:
        raise _wrong(file, name, f"has more than {_MAX_TENSORS} experts")
    return {
        made.replace("*", str(i)): _Place(
            tensor, file, name, tensor.shape[1:], (i, tensor.shape[0])
        )
        for i in range(tensor.shape[0])
    }


def _heads(file: GGUFFile, name: str, tensor: GGUFTensor, config: Mapping[str, Any]) -> int:
    key = permuted_heads(name)
    if key is None:
        return 0
    heads = config.get(key, config.get("num_attention_heads"))
    if type(heads) is not int or heads < 1 or tensor.shape[0] % (2 * heads):
        raise _wrong(
            file, name, f"has {tensor.shape[0]} rows, which {shown(heads)} heads do not divide"
        )
    return heads


def _check_scales(weight: IntWeight, place: _Place) -> None:
    for values, what in ((weight.scales, "scale"), (weight.minima, "minimum")):
        if values is not None and not np.isfinite(values).all():
            raise _wrong(place.file, place.name, f"has a {what} that is infinite or NaN")
