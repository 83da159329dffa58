"""XGBoost's models, in its formats JSON and UBJSON, computed by XGBoost (extra ``trees``)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
    kind = "margin" if options.margin else "value"

    def predict(matrix: "Array") -> Any:
        return booster.inplace_predict(matrix, predict_type=kind, validate_features=False)

    return FunctionModel(
        {"predict": predict},
        options,
        features=booster.num_features(),
        datatype="FP32",
        invalid=ValueError,
    )


load: Final = TensorLoader(
    engine=XGBOOST_ENGINE,
    executor="xgboost",
    platform="xgboost",
    options=XgboostOptions,
    load=_model,
)
