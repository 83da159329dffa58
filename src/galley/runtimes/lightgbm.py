"""LightGBM's models, in its text format, computed by LightGBM (extra ``trees``)."""

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
from galley.settings.engine_choice import LIGHTGBM_ENGINE
from galley.types import OnPhase
from galley.types.model_info import OnLedger

if TYPE_CHECKING:
    from galley.runtimes.tensor_model import Array


class LightgbmOptions(FunctionOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``engine_options`` of engine ``lightgbm``.

    Attributes:
        raw_score: return raw scores, without the objective's transformation.
    """

    raw_score: bool = False


def load(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None = None,
    pause: Callable[[], None] | None = None,
    on_ledger: OnLedger | None = None,
) -> TensorEngine:
    """Load a LightGBM file, or the only one in a folder; see :class:`galley.service.protocol.EngineLoader`.

    Raises:
        ModelError, SettingsError: the file or the settings cannot be used.
    """
    options = settings.options_as(LightgbmOptions)
    threads = settings.threads or available_cores()
    return build(
        settings,
        folder,
        options,
        lambda: _model(model_file(folder, (".txt",)), options, threads),
        executor="lightgbm",
        platform="lightgbm",
        on_phase=on_phase,
        shares_cores=pause is not None,
    )


def _model(file: Path, options: LightgbmOptions, threads: int) -> FunctionModel:
    lightgbm = import_library("lightgbm", LIGHTGBM_ENGINE, "trees")
    try:
        booster = lightgbm.Booster(model_file=str(file))
    except (lightgbm.basic.LightGBMError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"LightGBM {lightgbm.__version__} cannot load it: {str(error)[:300]}", file=str(file)
        ) from error

    def predict(matrix: "Array") -> Any:
        return booster.predict(matrix, raw_score=options.raw_score, num_threads=threads)

    return FunctionModel(
        {"predict": predict},
        options,
        features=booster.num_feature(),
        datatype="FP64",
        invalid=lightgbm.basic.LightGBMError,
    )
