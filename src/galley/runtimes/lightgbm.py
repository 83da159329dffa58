"""LightGBM's models, in its text format, computed by LightGBM (extra ``trees``)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from galley.errors import CheckpointError
from galley.runtimes.build import TensorLoader
from galley.runtimes.functions import FunctionModel, FunctionOptions
from galley.runtimes.library import import_library
from galley.runtimes.tensor_model import LoadSettings
from galley.settings.engine_choice import LIGHTGBM_ENGINE

if TYPE_CHECKING:
    from galley.runtimes.tensor_model import Array


class LightgbmOptions(FunctionOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``engine_options`` of engine ``lightgbm``.

    Attributes:
        raw_score: return raw scores, without the objective's transformation.
    """

    raw_score: bool = False


def _model(file: Path, options: LightgbmOptions, settings: LoadSettings) -> FunctionModel:
    lightgbm = import_library("lightgbm", LIGHTGBM_ENGINE, "trees")
    try:
        booster = lightgbm.Booster(model_file=str(file))
    except (lightgbm.basic.LightGBMError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"LightGBM {lightgbm.__version__} cannot load it: {str(error)[:300]}", file=str(file)
        ) from error

    def predict(matrix: "Array") -> Any:
        return booster.predict(matrix, raw_score=options.raw_score, num_threads=settings.threads)

    return FunctionModel(
        {"predict": predict},
        options,
        features=booster.num_feature(),
        datatype="FP64",
        invalid=lightgbm.basic.LightGBMError,
    )


load: Final = TensorLoader(
    engine=LIGHTGBM_ENGINE,
    executor="lightgbm",
    platform="lightgbm",
    options=LightgbmOptions,
    load=_model,
)
