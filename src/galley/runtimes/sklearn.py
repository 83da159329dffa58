"""scikit-learn's estimators and pipelines, in skops' format, computed by scikit-learn (extra ``sklearn``).

A pickle can run any code when it is loaded; skops' format names the types that a file has, and only known
ones are created.
"""

from pathlib import Path
from typing import Any, Final

from galley.errors import CheckpointError, UnsupportedModel
from galley.runtimes.build import TensorLoader
from galley.runtimes.functions import FunctionModel, FunctionOptions
from galley.runtimes.library import import_library
from galley.runtimes.tensor_model import LoadSettings
from galley.settings.engine_choice import SKLEARN_ENGINE

_METHODS: Final = ("predict", "predict_proba", "transform")
"""Methods of an estimator that are outputs, if it has them."""


class SklearnOptions(FunctionOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``engine_options`` of engine ``sklearn``.

    Attributes:
        trusted: types of scikit-learn that a file may have in addition to those that skops trusts. Trees
            need ``sklearn.tree._tree.Tree``: a malicious tree can crash the model's process.
    """

    trusted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.trusted:
            if not name.startswith("sklearn."):
                raise ValueError(f"trusted: {name!r} is not a type of scikit-learn (sklearn. ...)")


def _model(file: Path, options: SklearnOptions, settings: LoadSettings) -> FunctionModel:
    estimator = _estimator(file, options)
    import_library("threadpoolctl", SKLEARN_ENGINE, "sklearn").threadpool_limits(settings.threads)
    features = getattr(estimator, "n_features_in_", None)
    functions = {name: getattr(estimator, name) for name in _METHODS if hasattr(estimator, name)}
    if not functions or not isinstance(features, int):
        raise UnsupportedModel(
            f"{file}: a {type(estimator).__name__} is not a fitted estimator of a matrix: it has "
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


load: Final = TensorLoader(
    engine=SKLEARN_ENGINE,
    executor="sklearn",
    platform="sklearn",
    options=SklearnOptions,
    load=_model,
)
