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
from galley.formats.gguf_config import ROPE_FACTORS, Metadata, config_of, generation_of
from galley.formats.gguf_file import GGUFFile, GGUFTensor, read_gguf, split_files
from galley.formats.gguf_names import hf_name, permuted_heads, unpermuted
from galley.formats.json_file import open_file
from galley.formats.weights import (
    IntWeight,
    TensorInfo,
    Weight,
    Weights,
)
from galley.types import SamplingDefaults

_MAX_FACTORS: Final = 1 << 13


@dataclass(frozen=True, slots=True)
class GGUFCheckpoint:
    """See :class:`galley.formats.reader.CheckpointReader`.

    Attributes:
        folder: the file that was named; of a split checkpoint any of its files.
        files: all of them, in order.
        metadata: the first file's.
        config: made of the metadata, in the words of ``config.json``.
        generation: likewise, of ``generation_config.json``.
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
        """Raises CheckpointError or UnsupportedModel; it names the file and the field."""
        files = tuple(_read_split(path))
        metadata = Metadata(files[0].metadata, str(files[0].path))
        tensors = {name: tensor for file in files for name, tensor in file.tensors.items()}
        embedding = tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise CheckpointError(
                "tensor is missing" if embedding is None else "is no matrix",
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
        """Raises CheckpointError if an end-of-sequence id is no token of the model."""
        check_eos(self.eos_token_ids, vocab_size, str(self.folder))

    def weights(self) -> Weights:
        """All tensors by Hugging Face's names, mapped; integers are unpacked when they are asked for."""
        return _GGUFWeights(self.files, self.metadata.architecture == "llama", self.config)

    def content_hash(self) -> str:
        """See :class:`galley.formats.reader.CheckpointReader`."""
        return digests.content_hash(file.path for file in self.files)

    def outline(self) -> str:
        """See :class:`galley.formats.reader.CheckpointReader`."""
        return digests.outline(self._headers())

    def state(self) -> str:
        """See :class:`galley.formats.reader.CheckpointReader`."""
        return digests.state(self._headers())

    def _headers(self) -> Iterator[tuple[Path, bytes]]:
        for file in self.files:
            with open_file(file.path) as opened:
                yield file.path, opened.read(file.header)


def _read_split(path: Path) -> Iterator[GGUFFile]:
    """All files of the checkpoint. Raises CheckpointError if they do not belong together."""
    paths = split_files(path)
    seen: set[str] = set()
    for index, part in enumerate(paths):
        file = read_gguf(part)
        said = [file.metadata.get(f"split.{name}") for name in ("no", "count")]
        if said != [index, len(paths)] and (len(paths) > 1 or said[1] not in (None, 0, 1)):
            raise CheckpointError(
                f"says that it is {said[0]} of {said[1]}, its name says {index} of {len(paths)}; give the "
                "files the names that they were split with",
                file=str(part),
                field="split.no",
            )
        if twice := seen & file.tensors.keys():
            raise CheckpointError("is in another file, too", file=str(part), field=sorted(twice)[0])
        seen |= file.tensors.keys()
        yield file


def _bytes_of(file: GGUFFile, tensor: GGUFTensor) -> npt.NDArray[np.uint8]:
    return np.frombuffer(file.mapped, np.uint8, tensor.size, tensor.begin)


def _rope_factors(files: Iterable[GGUFFile]) -> list[float] | None:
    for file in files:
        tensor = file.tensors.get(ROPE_FACTORS)
        if tensor is None:
            continue
        if tensor.type.name != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > _MAX_FACTORS:
            raise CheckpointError(
                "is no short vector of F32", file=str(file.path), field=ROPE_FACTORS
            )
        return [float(value) for value in _bytes_of(file, tensor).view(np.float32)]
    return None


class _Place(NamedTuple):
    tensor: GGUFTensor
    file: GGUFFile
    name: str
    heads: int  # of llama's q and k, whose rows are permuted; else 0


class _GGUFWeights(Weights):
    """Tensors of the files by Hugging Face's names; each is unpacked anew when it is asked for."""

    def __init__(
        self, files: tuple[GGUFFile, ...], permuted: bool, config: Mapping[str, Any]
    ) -> None:
        self._places: dict[str, _Place] = {}
        for file in files:
            for name, tensor in file.tensors.items():
                if name == ROPE_FACTORS:
                    continue
                if tensor.type.values > 1 and len(tensor.shape) != 2:
                    raise CheckpointError(
                        f"has {len(tensor.shape)} dimensions, but type {tensor.type.name}, which only "
                        "matrices have",
                        file=str(file.path),
                        field=name,
                    )
                if hf_name(name) in self._places:
                    raise CheckpointError("stands twice", file=str(file.path), field=name)
                heads = _heads(file, name, tensor, config) if permuted else 0
                self._places[hf_name(name)] = _Place(tensor, file, name, heads)

    def info(self, name: str) -> TensorInfo:
        """See :class:`galley.formats.weights.Weights`."""
        tensor = self._places[name].tensor
        return TensorInfo(tensor.shape, kind_of(tensor.type.name, tensor.shape[-1]))

    def __getitem__(self, name: str) -> Weight:
        place = self._places[name]
        tensor = place.tensor
        data = _bytes_of(place.file, tensor)
        if place.heads:
            data = unpermuted(data.reshape(tensor.shape[0], -1), place.heads)
        weight = weight_of(name, tensor.type, tensor.shape, data)
        if isinstance(weight, IntWeight):
            _check_scales(weight, place)
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _heads(file: GGUFFile, name: str, tensor: GGUFTensor, config: Mapping[str, Any]) -> int:
    key = permuted_heads(name)
    if key is None:
        return 0
    heads = config.get(key, config.get("num_attention_heads"))
    if type(heads) is not int or heads < 1 or tensor.shape[0] % (2 * heads):
        raise CheckpointError(
            f"has {tensor.shape[0]} rows, which {shown(heads)} heads cannot share",
            file=str(file.path),
            field=name,
        )
    return heads


def _check_scales(weight: IntWeight, place: _Place) -> None:
    for values, what in ((weight.scales, "scale"), (weight.minima, "minimum")):
        if values is not None and not np.isfinite(values).all():
            raise CheckpointError(
                f"has a {what} that is infinite or NaN", file=str(place.file.path), field=place.name
            )
