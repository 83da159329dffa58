"""XGBoost's models, in its formats JSON and UBJSON, computed by XGBoost (extra ``trees``)."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from galley.errors import CheckpointError
from galley.machine import available_cores
from galley.runtimes.build import build
from galley.runtimes.functions import FunctionModel, FunctionOptions
from galley.runtimes.library import import_library, model_file
from galley.runtimes.tensor_engine import TensorEngine
from galley.settings.engine import EngineSettings
from galley.settings.engine_choice import XGBOOST_ENGINE
from galley.types import OnPhase
from galley.types.model_info import OnLedger

if TYPE_CHECKING:
    from galley.runtimes.tensor_model import Array


class XgboostOptions(FunctionOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``engine_options`` of engine ``xgboost``.

    Attributes:
        margin: return raw scores, without the objective's transformation.
    """

    margin: bool = False


def load(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None = None,
    pause: Callable[[], None] | None = None,
    on_ledger: OnLedger | None = None,
) -> TensorEngine:
    """Load an XGBoost file, or the only one in a folder; see :class:`galley.service.protocol.EngineLoader`.

    Raises:
        ModelError, SettingsError: the file or the settings cannot be used.
    """
    options = settings.options_as(XgboostOptions)
    threads = settings.threads or available_cores()
    return build(
        settings,
        folder,
        options,
        lambda: _model(model_file(folder, (".json", ".ubj")), options, threads),
        executor="xgboost",
        platform="xgboost",
        on_phase=on_phase,
        shares_cores=pause is not None,
    )


def _model(file: Path, options: XgboostOptions, threads: int) -> FunctionModel:
    xgboost = import_library("xgboost", XGBOOST_ENGINE, "trees")
    try:
        booster = xgboost.Booster({"nthread": threads}, model_file=str(file))
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
