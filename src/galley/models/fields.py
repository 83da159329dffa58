"""Typed access to ``config.json``; errors name the wrong field."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from galley.errors import CheckpointError, UnsupportedModel, shown
from galley.formats.weights import Weights
from galley.types import MAX_COUNT

FILE = "config.json"
GENERATION_FILE = "generation_config.json"

MAX_LAYERS: Final = 4096
"""Maximum number of layers in a stack; the deepest published models have some hundreds."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits that a checkpoint's tensors set for its config.

    They prevent allocations for false sizes.

    Attributes:
        layers: maximum number of layers in a stack, each of which has at least one tensor.
        width: the largest dimension of a tensor.
    """

    layers: int = MAX_LAYERS
    width: int = MAX_COUNT

    @classmethod
    def of(cls, weights: Weights) -> Self:
        """Return the bounds of a checkpoint; no tensor is read."""
        shapes = [weights.info(name).shape for name in weights]
        width = max((max(shape, default=1) for shape in shapes if math.prod(shape)), default=0)
        return cls(min(MAX_LAYERS, len(shapes)), min(MAX_COUNT, width))


UNBOUNDED: Final = Bounds()


class Fields:
    """A mapping of unvalidated values, read field by field.

    Attributes:
        context: tokens of the longest text to be supported; None: as many as the model was made
            for.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        *,
        prefix: str = "",
        file: str = FILE,
        bounds: Bounds = UNBOUNDED,
        context: int | None = None,
    ) -> None:
        self.context = context
        self._raw = raw
        self._prefix = prefix
        self._file = file
        self._bounds = bounds

    def wrong(self, name: str, expected: str) -> CheckpointError:
        """Return the error for a field whose value is not as ``expected``."""
        return self._wrong(name, self._raw.get(name), expected)

    def _wrong(self, name: str, value: Any, expected: str) -> CheckpointError:
        return CheckpointError(
            f"is {shown(value)}, expected {expected}", file=self._file, field=self._prefix + name
        )

    def has(self, name: str) -> bool:
        """Return whether the field is present and not null."""
        return self._raw.get(name) is not None

    def is_null(self, name: str) -> bool:
        """Return whether the field is null, which some families distinguish from absent."""
        return name in self._raw and self._raw[name] is None

    def count(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_COUNT
    ) -> int:
        """Return a whole number from ``least`` to ``most``. Null counts as absent."""
        value = self._raw.get(name)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise self._wrong(name, value, "a positive whole number")
        if value < least:
            raise self._wrong(name, value, f"at least {least}")
        if value > most:
            raise self._wrong(name, value, f"at most {most}")
        return value

    def layers(self, name: str, default: int | None = None) -> int:
        """Return the number of layers in a stack, which is at most the checkpoint's number of tensors."""
        value = self.count(name, default)
        if value > self._bounds.layers:
            limit = f"at most {MAX_LAYERS}"
            if self._bounds.layers < MAX_LAYERS:
                limit = f"at most {self._bounds.layers}, as many as the checkpoint has tensors for"
            raise self._wrong(name, value, limit)
        return value

    def width(self, name: str, default: int | None = None) -> int:
        """Return a dimension of tensors, or a divisor of one.

        It is at most the largest dimension of the checkpoint's tensors.
        """
        value = self.count(name, default)
        if value > self._bounds.width:
            raise self._wrong(
                name, value, f"at most {self._bounds.width}, the largest dimension of the tensors"
            )
        return value

    def whole(self, name: str, default: int) -> int:
        """Return a whole number, which may be zero."""
        value = self._raw.get(name)
        value = default if value is None else value
        if type(value) is not int or not 0 <= value <= MAX_COUNT:
            raise self._wrong(name, value, f"a whole number up to {MAX_COUNT}")
        return value

    def number(
        self, name: str, default: float | None = None, *, least: float | None = None
    ) -> float:
        """Return a positive finite number; ``least`` is accepted as well."""
        value = self._raw.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value, "a positive number")
        if not 0 < value < 1e30 and value != least:
            raise self._wrong(name, value, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self._raw.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def numbers(self, name: str) -> list[float]:
        """Return a list of positive finite numbers."""
        value = self._raw.get(name)
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list of positive numbers")
        return [
            Fields({name: item}, prefix=self._prefix, file=self._file).number(name)
            for item in value
        ]

    def words(self, name: str) -> list[str] | None:
        """Return a list of strings, or None if absent."""
        value = self._raw.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, value, "a list of strings")
        return value

    def tokens(self, name: str) -> tuple[int, ...]:
        """Return a list of token ids; empty if absent."""
        value = self._raw.get(name)
        ids = [] if value is None else value
        if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
            raise self._wrong(name, value, "a list of token ids")
        return tuple(ids)

    def pairs(self, name: str) -> tuple[tuple[int, int], ...]:
        """Return a list of pairs of whole numbers; empty if absent."""
        value = self._raw.get(name)
        pairs = [] if value is None else value
        if not isinstance(pairs, list) or not all(
            isinstance(pair, list) and [type(i) for i in pair] == [int, int] for pair in pairs
        ):
            raise self._wrong(name, value, "a list of pairs of whole numbers")
        return tuple((a, b) for a, b in pairs)

    def token_map(self, name: str) -> dict[str, int]:
        """Return a mapping of names -> token ids; empty if absent."""
        value = self._raw.get(name)
        ids = {} if value is None else value
        if not isinstance(ids, dict) or not all(type(i) is int and i >= 0 for i in ids.values()):
            raise self._wrong(name, value, "an object of token ids")
        return dict(ids)

    def section(self, *names: str) -> "Fields":
        """Return the first nested object under one of ``names`` that is not empty, or an empty one."""
        for name in names:
            value = self._raw.get(name)
            if value is not None and not isinstance(value, Mapping):
                raise self._wrong(name, value, "an object")
            if value:
                prefix = f"{self._prefix}{name}."
                return self._like(value, prefix)
        return Fields({}, prefix=self._prefix, file=self._file)

    def with_defaults(self, **values: Any) -> "Fields":
        """Return the same fields, with these values where they are absent."""
        raw = {**values, **self._raw}
        return self._like(raw, self._prefix)

    def updated(self, others: "Fields") -> "Fields":
        """Return the same fields, updated with those of ``others``."""
        return self._like({**self._raw, **others._raw}, self._prefix)

    def with_value(self, name: str, of: str) -> "Fields":
        """Return the same fields, with the value of the field ``of`` in ``name``."""
        raw = {**self._raw, name: self._raw.get(of)}
        return self._like(raw, self._prefix)

    def _like(self, raw: Mapping[str, Any], prefix: str) -> "Fields":
        bounds, context = self._bounds, self.context
        return Fields(raw, prefix=prefix, file=self._file, bounds=bounds, context=context)

    def only(self, name: str, *known: Any) -> None:
        """Raise UnsupportedModel if the field is present and not one of the ``known`` values."""
        if self.has(name) and self._raw[name] not in known:
            raise UnsupportedModel(
                f"{self._file}: {self._prefix}{name} {shown(self._raw[name])} is not supported; "
                f"known: {', '.join(map(str, known))}"
            )

    def choice(self, names: tuple[str, ...], known: tuple[str, ...], default: str) -> str:
        """Return the first of ``names`` that is present. Raise UnsupportedModel if it is unknown."""
        for name in names:
            value = self._raw.get(name)
            if value is not None:
                if value not in known:
                    raise UnsupportedModel(
                        f"{self._file}: {self._prefix}{name} {shown(value)} is not supported; "
                        f"known: {', '.join(known)}"
                    )
                return str(value)
        return default
