"""The table of machines that a plan compares."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from galley.errors import SettingsError
from galley.ops.triton.supported import LEAST_CAPABILITY

TABLE: Final = Path(__file__).with_name("hardware.yaml")

Positive = Annotated[float, Meta(gt=0)]
Kind = Literal["cpu", "gpu", "tpu", "asic"]

_EXECUTORS: Final[Mapping[Kind, str]] = {"cpu": "cpu", "gpu": "reference"}
"""Kind of machine -> Galley's executor for any model on it; other kinds have none."""

_NUMBERS: Final = {"memory", "bandwidth", "price"}
"""Fields that are summed over several accelerators of one machine."""


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the table.

    Attributes:
        name: unique in the table.
        what: a description for people.
        memory: GiB for weights and KV cache.
        bandwidth: of that memory, in GB/s.
        tflops: input type ("float32", "bfloat16", "fp8", "int8") -> 10^12 dense operations a second.
        price: US dollars an hour; None is not known.
        capability: compute capability of an NVIDIA GPU, such as 89 for 8.9.
        link: GB/s that one accelerator sends to the others of its machine; None is not known.
        count: accelerators that share each matrix; the other figures are their sums.
        sources: of the figures.
    """

    name: str
    what: str
    kind: Kind
    memory: Positive
    bandwidth: Positive
    tflops: Mapping[str, Positive]
    price: Positive | None = None
    capability: int | None = None
    link: Positive | None = None
    count: int = 1
    sources: tuple[str, ...] = ()

    def executor(self, *, gpu: bool) -> str | None:
        """Return the executor of Galley that runs there today.

        Args:
            gpu: whether executor "gpu" has kernels for the model.

        Returns:
            Its name; None if no executor is for this kind of machine, and for several accelerators, on
            which no executor has been tested yet.
        """
        if self.count > 1:
            return None
        if gpu and (self.capability or 0) >= LEAST_CAPABILITY:
            return "gpu"
        return _EXECUTORS.get(self.kind)

    def times(self, count: int) -> "Machine":
        """Return ``count`` of these accelerators in one machine, each matrix divided among them.

        Raises:
            SettingsError: it is not an accelerator, or the table does not give its link.
        """
        if count == 1:
            return self
        if self.kind == "cpu" or self.link is None:
            lacks = (
                "is a CPU"
                if self.kind == "cpu"
                else "has no link bandwidth in the table of machines"
            )
            raise SettingsError(f"--gpus {count}: {self.name} {lacks}")
        sums = {
            name: value * count for name in _NUMBERS if (value := getattr(self, name)) is not None
        }
        return msgspec.structs.replace(
            self,
            name=f"{count} x {self.name}",
            tflops={name: rate * count for name, rate in self.tflops.items()},
            count=count,
            **sums,
        )


def read_machines(path: Path = TABLE) -> list[Machine]:
    """Read the rows of a table.

    Raises:
        SettingsError: the file cannot be read, or a row is wrong; names file and field.
    """
    import yaml

    try:
        machines = msgspec.convert(
            yaml.safe_load(path.read_text(encoding="utf-8")), list[Machine], strict=True
        )
    except RecursionError as error:
        raise SettingsError(f"hardware table {path} nests lists or mappings too deeply") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"hardware table {path}: {error}") from error
    names = [machine.name for machine in machines]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or not machines:
        what = f"duplicate name {twice!r}" if twice else "it has no rows"
        raise SettingsError(f"hardware table {path}: {what}")
    return machines


def choose_machines(
    machines: Sequence[Machine], names: Sequence[str], count: int = 1
) -> list[Machine]:
    """Return the machines of these names (all, if none is given), each with ``count`` accelerators.

    Without names, CPUs and machines whose link is not known are left out where ``count`` is above 1.

    Raises:
        SettingsError: a name is not in the table, or such a machine cannot have ``count`` accelerators.
    """
    known = {machine.name.lower(): machine for machine in machines}
    for name in names:
        if name.lower() not in known:
            raise SettingsError(
                f"--machine {name!r} is not in the table of machines: "
                f"{', '.join(machine.name for machine in machines)}"
            )
    chosen = [known[name.lower()] for name in names]
    if not names:
        chosen = [m for m in machines if count == 1 or (m.kind != "cpu" and m.link is not None)]
    return [machine.times(count) for machine in chosen]
