"""The interface of a library that computes tensors, and the options of batching that all of them share."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from galley.types import Datatype, TensorSpec

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class InvalidTensors(Exception):
    """A request's tensors are at fault, not the model; the message is for its sender."""


class TensorModel(Protocol):
    """A loaded model. It is called from one thread at a time."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of :meth:`run`."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs that :meth:`run` can return."""

    def run(self, inputs: "Mapping[str, Array]", outputs: Sequence[str]) -> "list[Array]":
        """Return the outputs of these names, in this order. Elements of BYTES are ``str`` or ``bytes``.

        Raises:
            InvalidTensors: the model does not take these inputs.
            Exception: whatever the library raises; other requests are not affected.
        """

    def close(self) -> None:
        """Free what is not memory."""


class LoadSettings(NamedTuple):
    """The settings of the server that a library loads a model with.

    Attributes:
        threads: number of compute threads.
        weight_cache: whether what is made of the model's file may be kept on disk for the next start.
    """

    threads: int
    weight_cache: bool = True


class PaddingOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How requests of different lengths are combined.

    Attributes:
        mask: the input that is 0 at elements that must not affect the outputs.
        axis: the axis that may differ: of all inputs and outputs that have any length there.
        values: name of an input -> what it is filled with; 0 if it is left out.
    """

    mask: str
    axis: Annotated[int, msgspec.Meta(ge=1, le=31)] = 1
    values: dict[str, float] = msgspec.field(default_factory=dict)


class WarmupInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input of a warm-up, of zeros or of random numbers."""

    name: str
    datatype: Datatype
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    random: bool = False


class Warmup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Inputs that a model computes ``count`` times before it is ready."""

    inputs: tuple[WarmupInput, ...]
    count: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1


class BatchOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of batching, which every engine of tensors takes in ``engine_options``.

    Attributes:
        batching: "dynamic": what waits, and what is expected to arrive soon enough, is computed together;
            "static": a batch waits to be full, for ``max_queue_delay`` at most; "off": one request at a
            time.
        batch_axis: "first": the first axis of all inputs and outputs is a batch; "none": requests are
            computed one by one; "auto": "first" if those axes have any length and a trial with random
            inputs finds that rows do not depend on each other.
        max_batch_size: the most rows that several requests are combined to. A request with more rows is
            computed alone.
        max_queue_delay: the most seconds that a request waits for others.
        batch_invariant: compute every batch with ``max_batch_size`` rows, so that the bits of a row cannot
            depend on other requests. Costs time where batches are not full.
        preferred_batch_size: a batch of one of these sizes does not wait for further requests.
        instances: how often the model is loaded; each instance has an equal part of the threads, and
            computes a part of the rows of a batch, or one of several requests of a model without a batch
            axis.
        padding: how requests of different lengths are combined; None: they are not.
        limit_rows: refuse requests with more than ``max_batch_size`` rows instead of computing them alone.
        declared_inputs, declared_outputs: inputs and outputs that the model must have, with these types and
            shapes; another model is not loaded.
        priority_levels: levels of priority, 1 to this number; of a tenant's requests, those of each level
            are computed before those of the next. 0: requests with a smaller number are computed sooner,
            but none waits forever.
        default_priority: level of requests that name none of these levels.
        timeout: seconds within which a request is answered, or refused; 0: as set for the server. A
            request may ask for less.
        warmup: what the model computes before it is ready.
    """

    batching: Literal["dynamic", "static", "off"] = "dynamic"
    batch_axis: Literal["auto", "first", "none"] = "auto"
    max_batch_size: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 64
    max_queue_delay: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.005
    batch_invariant: bool = False
    preferred_batch_size: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = ()
    instances: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    padding: PaddingOptions | None = None
    limit_rows: bool = False
    declared_inputs: tuple[TensorSpec, ...] = ()
    declared_outputs: tuple[TensorSpec, ...] = ()
    priority_levels: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    default_priority: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    timeout: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    warmup: tuple[Warmup, ...] = ()

    def __post_init__(self) -> None:
        levels, level = self.priority_levels, self.default_priority
        if (levels or level) and not 1 <= level <= levels:
            raise ValueError(
                f"default_priority is {level}, but priority_levels is {levels}: give one of these levels"
            )

    @property
    def device(self) -> str:
        """The name of the library that computes the model, for reports."""
        return "cpu"
