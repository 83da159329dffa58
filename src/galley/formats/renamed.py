"""Multi-part models whose language model's tensors have the names that transformers 5 gives them."""

import re
from collections.abc import Iterator
from typing import Final

from galley.formats.weights import TensorInfo, Weight, Weights

_WITHIN: Final = "model.language_model."
_OTHERS: Final = re.compile(r"model\.(vision_tower|vision_model|multi_modal_projector)\.")


class Renamed(Weights):
    """The tensors of other weights, by names that families know.

    ``model.language_model.layers.0`` was ``language_model.model.layers.0`` in a model that also reads
    images, and is ``model.layers.0`` in the language model alone.
    """

    def __init__(self, weights: Weights, *, parts: bool) -> None:
        """Rename the tensors of ``weights``; ``parts``: the model is one of several parts."""
        self._weights = weights
        self._names = {_known(name, parts=parts): name for name in weights}
        self.notes = weights.notes

    @staticmethod
    def needed(weights: Weights) -> bool:
        """Return whether any of the names is a new one."""
        return any(name.startswith(_WITHIN) for name in weights)

    def info(self, name: str) -> TensorInfo:
        """Return shape and kind; see :class:`Weights`."""
        return self._weights.info(self._names[name])

    def is_rounded(self, name: str) -> bool:
        """Return whether a tensor is rounded; see :class:`Weights`."""
        return self._weights.is_rounded(self._names[name])

    def input_step(self, name: str) -> float:
        """Return the static scale of a matrix's inputs; see :class:`Weights`."""
        return self._weights.input_step(self._names[name])

    def __getitem__(self, name: str) -> Weight:
        return self._weights[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _known(name: str, *, parts: bool) -> str:
    if name.startswith(_WITHIN):
        inner = f"model.{name.removeprefix(_WITHIN)}"
        return f"language_model.{inner}" if parts else inner
    if name.startswith("lm_head.") and parts:
        return f"language_model.{name}"
    return name.removeprefix("model.") if _OTHERS.match(name) else name
