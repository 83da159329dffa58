"""The table of machines that a plan compares."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from galley.errors import SettingsError

TABLE: Final = Path(__file__).with_name("hardware.yaml")

Positive = Annotated[float, Meta(gt=0)]
Kind = Literal["cpu", "gpu", "tpu", "asic"]


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the table.

    Attributes:
        name: unique in the table.
        what: for people.
        memory: GiB for weights and KV cache.
        bandwidth: of that memory, in GB/s.
        tflops: input type ("float32", "bfloat16", "fp8", "int8") -> 10^12 dense operations a second.
        price: US dollars an hour; None is not known.
        sources: of the figures.
    """

    name: str
    what: str
    kind: Kind
    memory: Positive
    bandwidth: Positive
    tflops: Mapping[str, Positive]
    price: Positive | None = None
    sources: tuple[str, ...] = ()


def read_machines(path: Path = TABLE) -> list[Machine]:
    """The rows of a table.

    Raises:
        SettingsError: the file cannot be read, or a row is wrong; names file and field.
    """
    import yaml

    try:
        machines = msgspec.convert(
            yaml.safe_load(path.read_text(encoding="utf-8")), list[Machine], strict=True
        )
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise SettingsError(f"hardware table {path}: {error}") from error
    names = [machine.name for machine in machines]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or not machines:
        what = f"{twice!r} is there twice" if twice else "it has no rows"
        raise SettingsError(f"hardware table {path}: {what}")
    return machines
