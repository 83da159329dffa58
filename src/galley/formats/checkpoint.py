"""A checkpoint folder in Hugging Face layout: configuration, generation defaults, safetensors."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from galley.errors import CheckpointError, ModelNotFound, RequestError, UnsupportedModel, shown
from galley.formats import digests
from galley.formats.json_file import read_json
from galley.formats.latent import FAMILIES as LATENT_FAMILIES
from galley.formats.latent import HeadMatrices
from galley.formats.quantization import Section, quantization_of
from galley.formats.quantized import typed_weights
from galley.formats.renamed import Renamed
from galley.formats.safetensors import StoredTensor, read_header, read_safetensors
from galley.formats.stacked import UnstackedExperts
from galley.formats.vocabulary import end_of_text
from galley.formats.weights import Weights
from galley.settings.engine_choice import is_file_of_engine
from galley.types import SamplingDefaults, SamplingParams

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

_OWN = frozenset({"deepseek_v2", "deepseek_v3", "nomic_bert", "phi3"})
"""Families whose checkpoints contain code for programs without built-in support; it is not run."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint folder; see :class:`galley.formats.reader.CheckpointReader`.

    Attributes:
        config: ``config.json`` as it is.
        generation: ``generation_config.json`` as it is; empty if there is none.
        eos_token_ids: from ``generation_config.json``, else from ``config.json``, else from the tokenizer.
        defaults: sampling defaults from ``generation_config.json``.
        exact, keeps_floats: see :func:`galley.formats.quantized.typed_weights`.
    """

    folder: Path
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    eos_token_ids: tuple[int, ...]
    defaults: SamplingDefaults
    exact: bool = False
    keeps_floats: bool = False

    @classmethod
    def open(cls, folder: Path, *, exact: bool = False, keeps_floats: bool = False) -> "Checkpoint":
        """Open the checkpoint in ``folder``. Raises ModelNotFound, CheckpointError or UnsupportedModel."""
        if not folder.is_dir():
            if is_file_of_engine(folder):
                raise UnsupportedModel(
                    f"{folder} is a tensor model; serve it with galley serve, or give a checkpoint"
                )
            raise ModelNotFound(f"model folder {folder} does not exist")
        config = read_json(folder / "config.json")
        family = config.get("model_type")
        if not isinstance(family, str | None):
            file = str(folder / "config.json")
            raise CheckpointError(
                f"is {shown(family)}, not a string", file=file, field="model_type"
            )
        if "auto_map" in config and family not in _OWN:
            raise UnsupportedModel(
                f"{folder / 'config.json'}: auto_map requires code from the checkpoint, which "
                "Galley never runs"
            )
        generation_file = folder / "generation_config.json"
        generation = read_json(generation_file) if generation_file.exists() else {}
        eos, eos_file = generation.get("eos_token_id"), generation_file
        if eos is None:
            eos, eos_file = config.get("eos_token_id"), folder / "config.json"
        if eos is None:
            eos = end_of_text(folder)
        return cls(
            folder=folder,
            config=config,
            generation=generation,
            eos_token_ids=_token_ids(eos, file=str(eos_file)),
            defaults=sampling_defaults(generation, str(generation_file)),
            exact=exact,
            keeps_floats=keeps_floats,
        )

    def check_token_ids(self, vocab_size: int) -> None:
        """Raise CheckpointError if an end-of-sequence id is not a token of the model."""
        check_eos(self.eos_token_ids, vocab_size, str(self.folder))

    def weights(self) -> Weights:
        """Return all tensors, mapped: their bytes are read on first access.

        Raises:
            CheckpointError: a shard is missing or damaged, or lacks a tensor that the index lists, or
                tensors contradict the checkpoint's quantization.
            UnsupportedModel: the quantization is not supported.
        """
        quantization = self._quantization()
        weights = typed_weights(
            quantization, self._stored(), exact=self.exact, keeps_floats=self.keeps_floats
        )
        if Renamed.needed(weights):
            weights = Renamed(weights, parts="text_config" in self.config)
        if self.config.get("model_type") == "gpt_oss":
            return UnstackedExperts(weights, outputs_last=quantization is None)
        if self.config.get("model_type") in ("llama4", "llama4_text"):
            return UnstackedExperts(weights, outputs_last=True, by_turns=False)
        if self.config.get("model_type") == "granitemoehybrid":
            return UnstackedExperts(weights, outputs_last=False, by_turns=False)
        if self.config.get("model_type") in LATENT_FAMILIES:
            return HeadMatrices(weights, self.config)
        return weights

    def _quantization(self) -> Section | None:
        return quantization_of(self.folder, self.config)

    def _stored(self) -> dict[str, StoredTensor]:
        shard_of = self._index()
        if shard_of is None:
            return read_safetensors(self.folder / SINGLE_FILE)
        shards = {path.name: read_safetensors(path) for path in self._weight_files()}
        for tensor, shard in shard_of.items():
            if tensor not in shards[shard]:
                file = str(self.folder / INDEX_FILE)
                raise CheckpointError(f"is not in {shard}", file=file, field=tensor)
        named = {tensor: shards[shard][tensor] for tensor, shard in shard_of.items()}
        return {**{t: w for found in shards.values() for t, w in found.items()}, **named}

    def content_hash(self) -> str:
        """Return a hash; see :class:`galley.formats.reader.CheckpointReader`."""
        return self._as_quantized(digests.content_hash(self._weight_files()))

    def outline(self) -> str:
        """Return a hash; see :class:`galley.formats.reader.CheckpointReader`."""
        return self._as_quantized(digests.outline(self._headers()))

    def state(self) -> str:
        """Return a hash; see :class:`galley.formats.reader.CheckpointReader`."""
        return self._as_quantized(digests.state(self._headers()))

    def _as_quantized(self, digest: str) -> str:
        """Combine a digest with the quantization, which defines what the files' integers mean."""
        quantization = self._quantization()
        return digest if quantization is None else digests.combined(digest, quantization.raw)

    def _headers(self) -> Iterator[tuple[Path, bytes]]:
        return ((path, read_header(path)) for path in self._weight_files())

    def _weight_files(self) -> list[Path]:
        shard_of = self._index()
        if shard_of is None:
            return [self.folder / SINGLE_FILE]
        names = sorted(set(shard_of.values()))
        return [_shard_path(self.folder, self.folder / INDEX_FILE, name) for name in names]

    def _index(self) -> dict[str, str] | None:
        """Return tensor -> shard; None if there is one file.

        As in transformers, a complete file takes precedence over an index of other files, which is left
        over from another save.
        """
        path = self.folder / INDEX_FILE
        whole = (self.folder / SINGLE_FILE).exists()
        if not path.exists():
            if not whole and not has_safetensors(self.folder):
                raise CheckpointError(
                    f"has neither {SINGLE_FILE} nor {INDEX_FILE}; Galley reads safetensors, GGUF "
                    "files, and Whisper's model.bin as written by CTranslate2's converter",
                    file=str(self.folder),
                )
            return None
        shard_of = read_json(path).get("weight_map")
        if whole and (not isinstance(shard_of, dict) or SINGLE_FILE not in shard_of.values()):
            return None
        if not isinstance(shard_of, dict):
            raise CheckpointError("is missing", file=str(path), field="weight_map")
        return {tensor: str(shard) for tensor, shard in shard_of.items()}


def has_safetensors(folder: Path) -> bool:
    """Return whether a folder holds weights as safetensors."""
    return (folder / SINGLE_FILE).exists() or (folder / INDEX_FILE).exists()


def _shard_path(folder: Path, index: Path, name: str) -> Path:
    if not name.isprintable() or Path(name).name != name or not name.endswith(".safetensors"):
        raise CheckpointError(
            f"names shard {shown(name)}, expected a file name that ends in .safetensors",
            file=str(index),
            field="weight_map",
        )
    return folder / name


def check_eos(ids: Iterable[int], vocab_size: int, file: str) -> None:
    """Raise CheckpointError if an end-of-sequence id is not a token of the model."""
    for token in ids:
        if token >= vocab_size:
            raise CheckpointError(
                f"is {token}, but the model has {vocab_size} tokens",
                file=file,
                field="eos_token_id",
            )


def _token_ids(value: Any, *, file: str) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int and token >= 0 for token in ids):
        raise CheckpointError(f"is {shown(value)}", file=file, field="eos_token_id")
    return tuple(ids)


def sampling_defaults(generation: Mapping[str, Any], file: str) -> SamplingDefaults:
    """Return the default sampling parameters.

    transformers samples only with ``do_sample``; without it the default is greedy. A
    generation_config.json without sampling parameters leaves the API's neutral defaults.
    """
    names = SamplingDefaults.__struct_fields__
    given = {name: generation[name] for name in names if generation.get(name) is not None}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"is {shown(value)}, not a number", file=file, field=name)
    if generation.get("do_sample") is False:
        given["temperature"] = 0.0
    try:
        SamplingParams(**given)
    except RequestError as error:
        raise CheckpointError(str(error), file=file, field=error.param) from error
    return SamplingDefaults(**given)
