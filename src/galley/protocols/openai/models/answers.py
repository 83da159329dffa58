"""Answers that list the served models, field by field."""

from typing import Literal, NotRequired, TypedDict

from galley.types import Task
from galley.types.model_info import WeightReceipt

ModelState = Literal["loaded", "loading", "unloaded"]


class ModelCard(TypedDict):
    """A served model.

    Fields known only of a loaded model (`max_model_len`, `weights`, `memory`) are null while it is
    not loaded. `max_model_len` is also null for a model that does not work with text. `memory` is in
    bytes. `expires_at` is the Unix time at which a model that was loaded on request is unloaded if
    nobody requests it; null if it stays loaded. `engine` is the library that runs a loaded model, and
    `unsupported_parameters` are the sampling parameters that it does not honor. `parent` is the model to
    which a LoRA adapter is applied, or of which this is a further name. `voices` are the names that
    `/v1/audio/speech` takes; only a loaded model that speaks has them.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None
    tasks: list[Task]
    weights: WeightReceipt | None
    state: ModelState
    memory: int | None
    expires_at: int | None
    engine: str | None
    unsupported_parameters: list[str]
    parent: str | None
    voices: NotRequired[list[str]]


class ModelList(TypedDict):
    """Answer of `GET /v1/models`."""

    object: Literal["list"]
    data: list[ModelCard]
