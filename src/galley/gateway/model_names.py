"""The models of one server by name: their own names, those of adapters, and further ones."""

from collections.abc import Iterable, Iterator

from galley.errors import Conflict, EngineNotReady, RequestError, UnknownModel
from galley.gateway.derived import MOST_DERIVED, Derived
from galley.gateway.lifecycle import RETRY_SECONDS
from galley.gateway.served import ServedModel
from galley.types import Task


class ModelNames:
    """Models, and what the names in requests refer to.

    Attributes:
        derived: further names of models, see :meth:`derive`.
    """

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._models = {model.name: model for model in models}
        self.derived: dict[str, Derived] = {}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(list(self._models.values()))

    def remove(self, model: ServedModel) -> None:
        """Forget a model that has been withdrawn."""
        del self._models[model.name]

    @property
    def names(self) -> list[str]:
        """The models' names in the API."""
        return list(self._models)

    def knows(self, name: str) -> bool:
        """Return whether ``name`` is a model's name or a further name of one."""
        return name in self._models or name in self.derived

    def named(self, name: str) -> ServedModel:
        """Return the model of that name, loaded or not. Raises UnknownModel."""
        model = self._models.get(name)
        if model is None:
            raise self._unknown(name)
        return model

    def served(self, name: str) -> ServedModel:
        """Return the model with this name or adapter, loaded or not. Raises as ``Registry.find``."""
        return self._resolved(name)[0]

    def derive(self, derived: Derived) -> None:
        """Serve a model under a further name, replacing an earlier derived model of that name.

        Raises:
            Conflict: the name is that of a model or an adapter, or there are too many derived models.
        """
        name = derived.name
        if name in self._models or any(name in model.adapters for model in self):
            raise Conflict(f"{name!r} is the name of a served model or adapter; choose another")
        if name not in self.derived and len(self.derived) >= MOST_DERIVED:
            raise Conflict(
                f"the maximum of {MOST_DERIVED} derived models is reached; delete one (DELETE /api/delete)"
            )
        self.derived[name] = derived

    def task_of_pairs(self, name: str | None) -> Task | None:
        """Return the task by which to find a model that scores pairs if none is named; prefer rerankers."""
        if name is not None:
            return None
        reranks = any("rerank" in (model.tasks or ()) for model in self)
        return "rerank" if reranks else "embed"

    def _resolved(self, name: str) -> tuple[ServedModel, str | None]:
        """Return the model and adapter that ``name`` refers to.

        ``name`` is a model's name, MODEL:ADAPTER, or an adapter's name alone.

        Raises:
            UnknownModel: there is no such model or adapter.
            RequestError: several models have such an adapter.
        """
        if name in self._models:
            return self._models[name], None
        base, _, own = name.rpartition(":")
        if base in self._models and own in self._models[base].adapters:
            return self._models[base], own
        having = [model for model in self if name in model.adapters]
        if not having:
            raise self._unknown(name)
        if len(having) > 1:
            choices = " or ".join(f"{model.name}:{name}" for model in having)
            raise RequestError(
                f"Several models have an adapter {name!r}; choose {choices}", param="model"
            )
        return having[0], name

    def _only(self, task: Task | None) -> ServedModel:
        fitting = list(self)
        if len(fitting) > 1:
            if any(model.tasks is None for model in self._at_start):
                raise EngineNotReady("The models are loading", retry_after=RETRY_SECONDS)
            fitting = [m for m in self if task is None or m.tasks is None or task in m.tasks]
            if not fitting:
                raise RequestError(
                    f"No model of this server can {task}; it has {self._listed()}", param="model"
                )
        if len(fitting) != 1:
            raise RequestError(
                f"This server has {self._listed()}; choose one in the field model",
                param="model",
            )
        return fitting[0]

    @property
    def _at_start(self) -> list[ServedModel]:
        """The models that are loaded at the start and stay loaded, except those that were unloaded."""
        return [m for m in self if not m.on_request and m.withdrawn is None]

    def _listed(self) -> str:
        return ", ".join(map(repr, self._models))

    def _unknown(self, name: str) -> UnknownModel:
        adapters = sum(len(model.adapters) for model in self)
        more = f", and {adapters} adapters (GET /v1/models)" if adapters else ""
        return UnknownModel(
            f"The model {str(name)[:100]!r} does not exist; this server has {self._listed()}{more}"
        )
