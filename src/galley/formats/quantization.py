"""What a checkpoint says of its quantization, read field by field."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from galley.errors import CheckpointError, UnsupportedModel, shown
from galley.formats.json_file import read_json

_SECTIONS: Final = ("quantization_config", "compression_config")
"""Of config.json; the latter is what early compressed-tensors wrote."""

GPTQ_FILE: Final = "quantize_config.json"
"""Where early GPTQ tools wrote what config.json does not say."""

QUANTIZED_KEY: Final = "galley_quantize"
"""In ``config.json``: what ``galley quantize`` says of the weights that it wrote."""


class Section:
    """A JSON object of unknown quality about quantization.

    Attributes:
        raw: the object.
    """

    def __init__(self, raw: Mapping[str, Any], file: str, prefix: str = "") -> None:
        self.raw = raw
        self._file = file
        self._prefix = prefix

    def wrong(self, name: str, expected: str) -> CheckpointError:
        """The error for a field whose value is not what is ``expected``."""
        return CheckpointError(
            f"is {shown(self.raw.get(name))}, expected {expected}",
            file=self._file,
            field=self._prefix + name,
        )

    def unsupported(self, name: str, known: str) -> UnsupportedModel:
        """The error for a field whose value is understood by other programs alone."""
        return UnsupportedModel(
            f"{self._file}: {self._prefix}{name} {shown(self.raw.get(name))} is not supported; {known}"
        )

    def whole(self, name: str, default: int, *, least: int = 0) -> int:
        """A whole number of at least ``least``. Null counts as absent."""
        value = self.raw.get(name)
        value = default if value is None else value
        if type(value) is not int or not least <= value < 2**31:
            raise self.wrong(name, f"a whole number of at least {least}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """true or false. Null counts as absent."""
        value = self.raw.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def word(self, name: str, default: str) -> str:
        """A string, in lower case. Null counts as absent."""
        value = self.raw.get(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value.lower()

    def choice(self, name: str, default: str, known: tuple[str, ...]) -> str:
        """A string; UnsupportedModel if it is not one of those ``known``."""
        value = self.word(name, default)
        if value not in known:
            raise self.unsupported(name, f"known: {', '.join(known)}")
        return value

    def section(self, name: str) -> "Section | None":
        """A nested object; None if it is absent, null or empty."""
        value = self.raw.get(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(name, "an object")
        return Section(value, self._file, f"{self._prefix}{name}.")

    def sections(self, name: str) -> "list[Section]":
        """The objects that a nested object has, whatever they are called."""
        within = self.section(name)
        names = [] if within is None else list(within.raw)
        found = [] if within is None else [within.section(each) for each in names]
        return [one for one in found if one is not None]


def quantization_of(folder: Path, config: Mapping[str, Any]) -> Section | None:
    """What ``config.json``, or else ``quantize_config.json`` in the folder, says; None if nothing.

    Raises:
        CheckpointError: it is no object.
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
    """Whether a checkpoint was made for keys and values of 8 bits, as compressed-tensors or AutoFP8 say it.

    Raises:
        CheckpointError: what is said of its quantization is no object.
    """
    quantization = quantization_of(folder, config)
    scheme = None if quantization is None else quantization.raw.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return scheme.get("num_bits") == 8
    return scheme == "static"
