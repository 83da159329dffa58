"""How the served models are listed, field by field."""

from typing import Literal, TypedDict

from galley.types import Task
from galley.types.model_info import WeightReceipt

ModelState = Literal["loaded", "loading", "unloaded"]


class ModelCard(TypedDict):
    """A served model.

    What is known only of a loaded model (`max_model_len`, `weights`, `memory`) is null while it is none.
    `memory` is in bytes, and `expires_at` the Unix time at which a model that was loaded on request will be
    unloaded if nobody asks for it; null if it stays. `parent` is the model that a LoRA adapter is added to.
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
    parent: str | None


class ModelList(TypedDict):
    """Answer of `GET /v1/models`."""

    object: Literal["list"]
    data: list[ModelCard]
