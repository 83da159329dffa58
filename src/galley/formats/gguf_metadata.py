"""A GGUF file's metadata, read key by key: an error names the key of every wrong value."""

from collections.abc import Mapping
from typing import Any

from galley.errors import CheckpointError, UnsupportedModel, shown
from galley.formats.gguf_families import FAMILIES, MIXTRAL, Family


class Metadata:
    """Metadata of one file. The architecture's own keys are given without its name in front."""

    def __init__(self, raw: Mapping[str, Any], file: str) -> None:
        self.raw = raw
        self.file = file

    @property
    def architecture(self) -> str:
        """Name of the architecture. Raises UnsupportedModel unless it is one of FAMILIES."""
        found = self.raw.get("general.architecture")
        if not isinstance(found, str) or found not in FAMILIES:
            raise UnsupportedModel(
                f"{self.file}: general.architecture {shown(found)} is not supported; known: "
                f"{', '.join(FAMILIES)}"
            )
        return found

    @property
    def family(self) -> Family:
        """Family of the architecture; Mixtral's for a llama with experts."""
        architecture = self.architecture
        return (
            MIXTRAL
            if architecture == "llama" and self.own("expert_count")
            else FAMILIES[architecture]
        )

    def unsupported(self, key: str) -> UnsupportedModel:
        """Return the error for an ``own`` key that needs a feature that the models here do not support."""
        value = shown(self.raw.get(f"{self.architecture}.{key}"))
        return UnsupportedModel(
            f"{self.file}: {self.architecture}.{key} is {value}, which is not supported"
        )

    def own(self, key: str) -> Any:
        """Return the value of the architecture's ``key``; equal numbers for all layers become one.

        Raises:
            UnsupportedModel: layers differ.
        """
        value = self.raw.get(f"{self.architecture}.{key}")
        if isinstance(value, list) and value:
            if any(item != value[0] for item in value):
                raise UnsupportedModel(
                    f"{self.file}: {self.architecture}.{key} differs between layers, which is not "
                    "supported"
                )
            return value[0]
        return value

    def strings(self, key: str) -> list[str]:
        """Return a list of strings; empty if absent. Raises CheckpointError if it is anything else."""
        value = self.raw.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise CheckpointError("is not a list of strings", file=self.file, field=key)
        return value

    def token(self, name: str) -> int | None:
        """Return a token id, ``tokenizer.ggml.NAME``; None if there is none."""
        value = self.raw.get(f"tokenizer.ggml.{name}")
        if value is None:
            return None
        if type(value) is not int or value < 0:
            raise CheckpointError(
                f"is {shown(value)}, expected a token id",
                file=self.file,
                field=f"tokenizer.ggml.{name}",
            )
        return value
