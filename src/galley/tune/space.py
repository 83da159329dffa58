"""The settings among which the cheapest are looked for."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from galley.errors import SettingsError
from galley.settings.engine import EngineSettings

TUNED: Final = (
    "weight_dtype",
    "kv_dtype",
    "max_batch_tokens",
    "max_running",
    "threads",
    "replicas",
    "speculation",
)
"""Names of the settings, as in the settings file; ``max_batch_tokens`` bounds the chunks of a prompt."""

Value = str | int


class Candidate(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A value for each of the settings of :data:`TUNED`; ``threads`` are those of each replica."""

    weight_dtype: str
    kv_dtype: str
    max_batch_tokens: int
    max_running: int
    threads: int
    replicas: int
    speculation: str

    @property
    def values(self) -> dict[str, Value]:
        """Setting -> value."""
        return {name: getattr(self, name) for name in TUNED}

    def settings(self, base: EngineSettings) -> EngineSettings:
        """Return the settings of each engine. Raises SettingsError if they contradict each other."""
        changes: dict[str, Any] = dict(self.values)
        del changes["replicas"]  # a setting of the server
        return dataclasses.replace(base, **changes)

    def __str__(self) -> str:
        """Return all values, in a line."""
        return ", ".join(f"{name} {value}" for name, value in self.values.items())


def default_space(cores: int, *, quantized: bool) -> dict[str, list[Value]]:
    """Return the values to try.

    Args:
        cores: that the server may use.
        quantized: the checkpoint is quantized, so that its weights stay as they are.
    """
    return {
        "weight_dtype": ["auto"] if quantized else ["bf16", "int8", "int4"],
        "kv_dtype": ["bfloat16", "int8"],
        "max_batch_tokens": [128, 512, 2048],
        "max_running": [8, 32, 128],
        "threads": sorted({max(1, cores // 2), cores}),
        "replicas": [1, 2] if cores > 1 else [1],
        "speculation": ["off", "auto"],
    }


def parse_space(space: dict[str, list[Value]], texts: Sequence[str]) -> dict[str, list[Value]]:
    """Return the space with other values for the settings that texts such as ``threads=1,2`` name.

    Raises:
        SettingsError: a setting is none of :data:`TUNED`, or a number is expected.
    """
    changed = dict(space)
    for text in texts:
        name, _, given = text.partition("=")
        name = name.strip().replace("-", "_")
        values = [value.strip() for value in given.split(",") if value.strip()]
        if name not in TUNED or not values:
            raise SettingsError(
                f"--try {text!r} is not SETTING=VALUE,VALUE with one of {', '.join(TUNED)}"
            )
        if Candidate.__annotations__[name] is int:
            if not all(value.isdecimal() for value in values):
                raise SettingsError(f"--try {text!r}: {name} is a whole number")
            changed[name] = [int(value) for value in dict.fromkeys(values)]
        else:
            changed[name] = [*dict.fromkeys(values)]
    return changed


def candidates(
    space: Mapping[str, Sequence[Value]], base: EngineSettings, cores: int
) -> list[Candidate]:
    """Return all combinations that are valid settings, and whose replicas have cores of their own.

    Args:
        space: values of each setting.
        base: the other settings.
        cores: that the server may use.

    Raises:
        SettingsError: none is valid; the reason is that of the first.
    """
    found: list[Candidate] = []
    reason: SettingsError | None = None
    for values in itertools.product(*(space[name] for name in TUNED)):
        candidate = msgspec.convert(dict(zip(TUNED, values, strict=True)), Candidate)
        try:
            candidate.settings(base)
            _check_cores(candidate, base, cores)
        except SettingsError as error:
            reason = reason or error
        else:
            found.append(candidate)
    if not found and reason is not None:
        raise reason
    return found


def _check_cores(candidate: Candidate, base: EngineSettings, cores: int) -> None:
    replicas, threads = candidate.replicas, candidate.threads * base.tensor_parallel
    if replicas < 1:
        raise SettingsError("--try replicas: galley tune starts the replicas; give at least 1")
    if replicas > 1 and base.tensor_parallel_rank:
        raise SettingsError(
            f"{replicas} replicas cannot share the ranks of tensor_parallel_rank: give --try replicas=1"
        )
    if replicas > 1 and replicas * threads > cores:
        raise SettingsError(
            f"{replicas} replicas of {threads} threads each are more than the {cores} cores of this "
            "machine; give fewer replicas or threads (--try threads=1)"
        )
