"""scikit-learn's estimators and pipelines, in skops' format, computed by scikit-learn (extra ``sklearn``).

A pickle can run any code when it is loaded; skops' format names the types that a file has, and only known
ones are created.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from galley.errors import CheckpointError, SettingsError, UnsupportedModel
from galley.machine import available_cores
from galley.runtimes.build import build
from galley.runtimes.functions import FunctionModel, FunctionOptions
from galley.runtimes.library import import_library, model_file
from galley.runtimes.tensor_engine import TensorEngine
from galley.settings.engine import EngineSettings
from galley.settings.engine_choice import SKLEARN_ENGINE
from galley.types import OnPhase
from galley.types.model_info import OnLedger

_METHODS: Final = ("predict", "predict_proba", "transform")
"""Methods of an estimator that are outputs, if it has them."""


class SklearnOptions(FunctionOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``engine_options`` of engine ``sklearn``.

    Attributes:
        trusted: types of scikit-learn that a file may have in addition to those that skops trusts. Trees
            need ``sklearn.tree._tree.Tree``: a malicious tree can crash the model's process.
    """

    trusted: tuple[str, ...] = ()


def load(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None = None,
    pause: Callable[[], None] | None = None,
    on_ledger: OnLedger | None = None,
) -> TensorEngine:
    """Load a skops file, or the only one in a folder; see :class:`galley.service.protocol.EngineLoader`.

    Raises:
        ModelError, SettingsError: the file or the settings cannot be used.
    """
    options = settings.options_as(SklearnOptions)
    for name in options.trusted:
        if not name.startswith("sklearn."):
            raise SettingsError(f"trusted: {name!r} is not a type of scikit-learn (sklearn. ...)")
    threads = settings.threads or available_cores()
    return build(
        settings,
        folder,
        options,
        lambda: _model(model_file(folder, (".skops",)), options, threads),
        executor="sklearn",
        platform="sklearn",
        on_phase=on_phase,
        shares_cores=pause is not None,
    )


def _model(file: Path, options: SklearnOptions, threads: int) -> FunctionModel:
    estimator = _estimator(file, options)
    import_library("threadpoolctl", SKLEARN_ENGINE, "sklearn").threadpool_limits(threads)
    features = getattr(estimator, "n_features_in_", None)
    functions = {name: getattr(estimator, name) for name in _METHODS if hasattr(estimator, name)}
    if not functions or not isinstance(features, int):
        raise UnsupportedModel(
            f"{file}: a {type(estimator).__name__} is no fitted estimator of a matrix: it has "
            f"{'no n_features_in_' if functions else 'none of ' + ', '.join(_METHODS)}"
        )
    return FunctionModel(functions, options, features=features, datatype="FP64", invalid=ValueError)


def _estimator(file: Path, options: SklearnOptions) -> Any:
    skops = import_library("skops.io", SKLEARN_ENGINE, "sklearn")
    try:
        unknown = sorted(set(skops.get_untrusted_types(file=file)) - set(options.trusted))
        if not unknown:
            return skops.load(file, trusted=list(options.trusted))
    except Exception as error:  # whatever a damaged archive raises
        raise CheckpointError(
            f"skops cannot load it: {str(error)[:300]}", file=str(file)
        ) from error
    own = [name for name in unknown if name.startswith("sklearn.")]
    advice = (
        f'; if you trust the file: engine_options={{"trusted": {own}}}'.replace("'", '"')
        if own == unknown
        else "; only types of scikit-learn can be trusted"
    )
    raise CheckpointError(
        f"it has types that skops does not trust: {', '.join(unknown)}{advice}", file=str(file)
    )
