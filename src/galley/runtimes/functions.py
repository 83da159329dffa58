"""Models that are functions of one matrix: trees, linear models, scikit-learn's pipelines."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import numpy as np

from galley.errors import UnsupportedModel
from galley.runtimes.arrays import DTYPES, to_tensor
from galley.runtimes.tensor_model import BatchOptions, InvalidTensors
from galley.types import TensorSpec

if TYPE_CHECKING:
    from galley.runtimes.tensor_model import Array

    Function: TypeAlias = Callable[[Array], Any]


class FunctionOptions(BatchOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``engine_options`` of engines whose models take one matrix.

    Attributes:
        input_name: name of the input.
        input_datatype: its data type; "auto": the library's own.
        output_names: the library's name of an output -> its name in requests.
    """

    input_name: str = "input"
    input_datatype: Literal["auto", "FP32", "FP64"] = "auto"
    output_names: dict[str, str] = msgspec.field(default_factory=dict)


class FunctionModel:
    """A model of functions of one matrix: see :class:`galley.runtimes.tensor_model.TensorModel`."""

    def __init__(
        self,
        functions: "Mapping[str, Function]",
        options: FunctionOptions,
        *,
        features: int,
        datatype: Literal["FP32", "FP64"],
        invalid: type[Exception],
    ) -> None:
        """Call each function on two rows, to learn the type and shape of its output.

        Args:
            functions: name of an output -> function of an array [rows, features].
            options: names and data type of the request's tensors.
            features: columns of the matrix.
            datatype: the data type if the options name none.
            invalid: the library's error for values that it does not take.

        Raises:
            UnsupportedModel: a function does not return an array with a row for each of its input's, or the
                options name an output that there is none of.
        """
        chosen = datatype if options.input_datatype == "auto" else options.input_datatype
        for name in options.output_names:
            if name not in functions:
                raise UnsupportedModel(
                    f"output_names: the model has no output {name!r}; it has {', '.join(functions)}"
                )
        self._functions = {options.output_names.get(n, n): f for n, f in functions.items()}
        self._input, self._invalid = options.input_name, invalid
        shape = (-1, features)
        self.inputs = (TensorSpec(name=self._input, datatype=chosen, shape=shape),)
        two = np.zeros((2, features), DTYPES[chosen])
        self.outputs = tuple(_spec(name, f(two)) for name, f in self._functions.items())

    def run(self, inputs: "Mapping[str, Array]", outputs: Sequence[str]) -> "list[Array]":
        """Compute the outputs of these names."""
        matrix = inputs[self._input]
        try:
            return [np.asarray(self._functions[name](matrix)) for name in outputs]
        except self._invalid as error:
            raise InvalidTensors(str(error)[:500]) from None

    def close(self) -> None:
        """Do nothing: the model is memory, which is freed with the object."""


def _spec(name: str, result: Any) -> TensorSpec:
    if not isinstance(result, np.ndarray) or result.shape[:1] != (2,):
        kind = type(result).__name__
        raise UnsupportedModel(
            f"output {name!r} is a {kind}, and not an array with a row for each input"
        )
    try:
        datatype = to_tensor(name, result).datatype
    except TypeError as error:
        raise UnsupportedModel(str(error)) from None
    return TensorSpec(name=name, datatype=datatype, shape=(-1, *result.shape[1:]))
