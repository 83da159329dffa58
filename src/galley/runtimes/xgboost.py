"""XGBoost's models, in its formats JSON and UBJSON, computed by XGBoost (extra ``trees``)."""

import ctypes
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from galley.errors import CheckpointError
from galley.runtimes.build import TensorLoader
from galley.runtimes.functions import FunctionModel, FunctionOptions
from galley.runtimes.library import import_library
from galley.runtimes.tensor_model import LoadSettings
from galley.settings.engine_choice import XGBOOST_ENGINE

if TYPE_CHECKING:
    from galley.runtimes.tensor_model import Array


class XgboostOptions(FunctionOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``engine_options`` of engine ``xgboost``.

    Attributes:
        margin: return raw scores, without the objective's transformation.
    """

    margin: bool = False


def _model(file: Path, options: XgboostOptions, settings: LoadSettings) -> FunctionModel:
    xgboost = import_library("xgboost", XGBOOST_ENGINE, "trees")
    try:
        booster = xgboost.Booster({"nthread": settings.threads}, model_file=str(file))
    except (xgboost.core.XGBoostError, ValueError) as error:
        reason = str(error).strip().splitlines()[0][:300]
        raise CheckpointError(
            f"XGBoost {xgboost.__version__} cannot load it: {reason}", file=str(file)
        ) from error
    return FunctionModel(
        {"predict": _Predict(xgboost, booster, margin=options.margin)},
        options,
        features=booster.num_features(),
        datatype="FP32",
        invalid=ValueError,
    )


class _Predict:
    """Computes the predictions for a matrix as ``Booster.inplace_predict`` does, by the same C function.

    The library's own method looks for tables of many kinds, which takes longer than 100 trees for one row.
    """

    def __init__(self, xgboost: Any, booster: Any, *, margin: bool) -> None:
        """Wrap a booster; ``margin``: return raw scores."""
        self._booster = booster  # owns the handle
        self._check = xgboost.core._check_call
        self._predict = xgboost.core._LIB.XGBoosterPredictFromDense
        config = {
            "type": int(margin),
            "training": False,
            "iteration_begin": 0,
            "iteration_end": 0,
            "missing": math.nan,
            "strict_shape": False,
            "cache_id": 0,
        }
        self._config = json.dumps(config).encode()

    def __call__(self, matrix: "Array") -> "Array":
        """Return the predictions for a matrix [rows, features]."""
        matrix = np.ascontiguousarray(matrix)
        described = (
            f'{{"data": [{matrix.ctypes.data}, true], "typestr": "{matrix.dtype.str}", '
            f'"shape": [{matrix.shape[0]}, {matrix.shape[1]}], "version": 3}}'
        )
        axes, lengths = ctypes.c_uint64(), ctypes.POINTER(ctypes.c_uint64)()
        found = ctypes.POINTER(ctypes.c_float)()
        self._check(
            self._predict(
                self._booster.handle,
                described.encode(),
                self._config,
                None,
                ctypes.byref(lengths),
                ctypes.byref(axes),
                ctypes.byref(found),
            )
        )
        shape = lengths[: axes.value]
        # The library uses its memory again for the next call.
        data = ctypes.string_at(found, math.prod(shape) * ctypes.sizeof(ctypes.c_float))
        return np.frombuffer(data, np.float32).reshape(shape)


load: Final = TensorLoader(
    engine=XGBOOST_ENGINE,
    executor="xgboost",
    platform="xgboost",
    options=XgboostOptions,
    load=_model,
)
