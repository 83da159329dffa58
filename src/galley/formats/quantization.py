"""A checkpoint's quantization config, read field by field."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from galley.errors import CheckpointError, UnsupportedModel, shown
from galley.formats.json_file import read_json

_SECTIONS: Final = ("quantization_config", "compression_config")
"""Sections of config.json; early compressed-tensors wrote the latter."""

GPTQ_FILE: Final = "quantize_config.json"
"""File in which early GPTQ tools stored fields that are missing in config.json."""

QUANTIZED_KEY: Final = "galley_quantize"
"""Key in ``config.json`` under which ``galley quantize`` describes the weights that it wrote."""


class Section:
    """An untrusted JSON object about quantization.

    Attributes:
        raw: the object.
    """

    def __init__(self, raw: Mapping[str, Any], file: str, prefix: str = "") -> None:
        self.raw = raw
        self._file = file
        self._prefix = prefix

    def wrong(self, name: str, expected: str) -> CheckpointError:
        """Return the error for a field whose value differs from the ``expected`` one."""
        return CheckpointError(
            f"is {shown(self.raw.get(name))}, expected {expected}",
            file=self._file,
            field=self._prefix + name,
        )

    def unsupported(self, name: str, known: str) -> UnsupportedModel:
        """Return the error for a field whose value is only supported by other programs."""
        return UnsupportedModel(
            f"{self._file}: {self._prefix}{name} {shown(self.raw.get(name))} is not supported; {known}"
        )

    def whole(self, name: str, default: int, *, least: int = 0) -> int:
        """Return a whole number of at least ``least``. Null counts as absent."""
        value = self.raw.get(name)
        value = default if value is None else value
        if type(value) is not int or not least <= value < 2**31:
            raise self.wrong(name, f"a whole number of at least {least}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false. Null counts as absent."""
        value = self.raw.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def word(self, name: str, default: str) -> str:
        """Return a string, in lower case. Null counts as absent."""
        value = self.raw.get(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value.lower()

    def choice(self, name: str, default: str, known: tuple[str, ...]) -> str:
        """Return a string. Raises UnsupportedModel if it is not one of those ``known``."""
        value = self.word(name, default)
        if value not in known:
            raise self.unsupported(name, f"known: {', '.join(known)}")
        return value

    def section(self, name: str) -> "Section | None":
        """Return a nested object; None if it is absent, null or empty."""
        value = self.raw.get(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(name, "an object")
        return Section(value, self._file, f"{self._prefix}{name}.")

    def sections(self, name: str) -> "list[Section]":
        """Return the objects within a nested object, whatever their names."""
        within = self.section(name)
        names = [] if within is None else list(within.raw)
        found = [] if within is None else [within.section(each) for each in names]
        return [one for one in found if one is not None]


def quantization_of(folder: Path, config: Mapping[str, Any]) -> Section | None:
    """Return the quantization of ``config.json``, else of ``quantize_config.json``; None if there is none.

    Raises:
        CheckpointError: it is not an object.
    """
    within = Section(config, str(folder / "config.json"))
    for name in _SECTIONS:
        if found := within.section(name):
            return found
    path = folder / GPTQ_FILE
    return (
        Section({"quant_method": "gptq", **read_json(path)}, str(path)) if path.exists() else None
    )


def has_8_bit_kv(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint was made for 8-bit keys and values.

    compressed-tensors and AutoFP8 mark this in its quantization config.

    Raises:
        CheckpointError: its quantization is not an object.
    """
    quantization = quantization_of(folder, config)
    scheme = None if quantization is None else quantization.raw.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return scheme.get("num_bits") == 8
    return scheme == "static"
