"""Trees and scikit-learn's estimators, trained here: results equal those of the library alone."""

import pickle
from pathlib import Path
from typing import Any

# skops, which takes two seconds to import, is imported by the tests that write its files.
import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from galley.errors import CheckpointError, SettingsError, UnsupportedModel
from galley.formats.source import resolve_model
from galley.runtimes.arrays import to_array, to_tensor
from galley.runtimes.tensor_engine import TensorEngine
from galley.service.protocol import find_loader
from galley.service.tensor_requests import predict_request
from galley.settings.engine import EngineSettings
from galley.settings.engine_choice import engine_of
from galley.types import Tensors

RNG = np.random.default_rng(0)
X = RNG.random((200, 5)).astype(np.float32)
BINARY = (X[:, 0] + X[:, 1] > 1).astype(int)
CLASSES = (3 * X[:, 0]).astype(int)
BOOST = {"nthread": 1, "max_depth": 3}
LIGHT = {"num_threads": 1, "verbose": -1, "min_data_in_leaf": 5}


def engine_of_file(path: Path, options: str = "", **settings: Any) -> TensorEngine:
    made = EngineSettings(model=str(path), threads=1, engine_options=options, **settings)
    engine = find_loader(made.engine_name)(made, resolve_model(str(path)))
    assert isinstance(engine, TensorEngine)
    return engine


def answers(engine: TensorEngine, x: Any, name: str = "input") -> list[dict[str, Any]]:
    """Return the outputs for each row, from requests that are computed together."""
    for i in range(len(x)):
        tensors = [to_tensor(name, x[i : i + 1])]
        engine.add(predict_request(tensors, (), engine.info, request_id=f"{i:03}"))
    got = {}
    while engine.has_work:
        for output in engine.step():
            assert isinstance(output.result, Tensors), output
            got[output.request_id] = {t.name: to_array(t) for t in output.result.outputs}
    assert engine.stats.steps < len(x)
    return [got[key] for key in sorted(got)]


def column(engine: TensorEngine, x: Any, output: str = "predict") -> Any:
    return np.concatenate([one[output] for one in answers(engine, x)])


@pytest.mark.parametrize("suffix", ["json", "ubj"])
@pytest.mark.parametrize(
    ("objective", "target", "more", "shape"),
    [
        ("binary:logistic", BINARY, {}, [-1]),
        ("multi:softprob", CLASSES, {"num_class": 3}, [-1, 3]),
        ("reg:squarederror", X[:, 2], {}, [-1]),
    ],
)
def test_xgboost(
    tmp_path: Path, suffix: str, objective: str, target: Any, more: Any, shape: Any
) -> None:
    booster = xgboost.train(
        BOOST | {"objective": objective} | more, xgboost.DMatrix(X, target), num_boost_round=10
    )
    booster.save_model(tmp_path / f"model.{suffix}")
    engine = engine_of_file(tmp_path / f"model.{suffix}")
    assert engine.info.tensors is not None
    [wanted] = engine.info.tensors.inputs
    assert (wanted.datatype, list(wanted.shape)) == ("FP32", [-1, 5])
    assert [list(one.shape) for one in engine.info.tensors.outputs] == [shape]
    x = X[:40].copy()
    x[3, 2] = np.nan
    assert column(engine, x).tobytes() == booster.predict(xgboost.DMatrix(x)).tobytes()
    raw = engine_of_file(tmp_path, '{"margin": true}')
    margin = booster.predict(xgboost.DMatrix(x), output_margin=True)
    assert column(raw, x).tobytes() == margin.tobytes()


@pytest.mark.parametrize(
    ("objective", "target", "more"),
    [
        ("binary", BINARY, {}),
        ("multiclass", CLASSES, {"num_class": 3}),
        ("regression", X[:, 2], {}),
    ],
)
def test_lightgbm(tmp_path: Path, objective: str, target: Any, more: Any) -> None:
    booster = lightgbm.train(
        LIGHT | {"objective": objective} | more, lightgbm.Dataset(X, target), num_boost_round=10
    )
    booster.save_model(tmp_path / "model.txt")
    engine = engine_of_file(tmp_path / "model.txt")
    x = X[:40].astype(np.float64)
    x[3, 2] = np.nan
    assert column(engine, x).tobytes() == booster.predict(x).tobytes()
    raw = engine_of_file(tmp_path, '{"raw_score": true, "input_datatype": "FP32"}')
    assert column(raw, X[:40]).tobytes() == booster.predict(X[:40], raw_score=True).tobytes()


def test_sklearn(tmp_path: Path) -> None:
    from skops import io

    words = np.array(["low", "high"])[BINARY]
    for name, estimator, target in (
        ("pipeline", make_pipeline(StandardScaler(), LogisticRegression()), BINARY),
        ("words", LogisticRegression(), words),
        ("ridge", Ridge(), X[:, 2]),
        ("scaler", StandardScaler(), None),
    ):
        estimator.fit(X.astype(np.float64), target)
        file = tmp_path / f"{name}.skops"
        io.dump(estimator, file)
        engine = engine_of_file(file)
        assert engine.info.tensors is not None
        rows = X[:20].astype(np.float64)
        got = answers(engine, rows)
        for spec in engine.info.tensors.outputs:
            whole = np.concatenate([one[spec.name] for one in got])
            alone = getattr(estimator, spec.name)(rows)
            if spec.datatype == "BYTES":
                assert whole.tolist() == alone.tolist()
            else:
                np.testing.assert_allclose(whole, alone, rtol=1e-12)
        names = [spec.name for spec in engine.info.tensors.outputs]
        assert names == [
            n for n in ("predict", "predict_proba", "transform") if hasattr(estimator, n)
        ]


def test_names_of_tensors_can_be_those_of_another_server(tmp_path: Path) -> None:
    booster = xgboost.train(BOOST, xgboost.DMatrix(X, X[:, 0]), num_boost_round=2)
    booster.save_model(tmp_path / "model.ubj")
    names = '{"input_name": "input__0", "output_names": {"predict": "output__0"}}'
    engine = engine_of_file(tmp_path / "model.ubj", names)
    got = answers(engine, X[:4], "input__0")
    assert [list(one) for one in got] == [["output__0"]] * 4
    with pytest.raises(UnsupportedModel, match="the model has no output 'label'; it has predict"):
        engine_of_file(tmp_path / "model.ubj", '{"output_names": {"label": "y"}}')


def test_trees_of_sklearn_need_trust(tmp_path: Path) -> None:
    from skops import io

    forest = RandomForestClassifier(3, random_state=0).fit(X, BINARY)
    io.dump(forest, tmp_path / "forest.skops")
    with pytest.raises(CheckpointError, match=r'"trusted": \["sklearn.tree._tree.Tree"\]'):
        engine_of_file(tmp_path / "forest.skops")
    engine = engine_of_file(tmp_path / "forest.skops", '{"trusted": ["sklearn.tree._tree.Tree"]}')
    rows = X[:20].astype(np.float64)
    assert (column(engine, rows, "predict_proba") == forest.predict_proba(rows)).all()
    with pytest.raises(SettingsError, match=r"'os\.system' is not a type of scikit-learn"):
        engine_of_file(tmp_path / "forest.skops", '{"trusted": ["os.system"]}')


def test_values_that_a_model_does_not_take(tmp_path: Path) -> None:
    from skops import io

    io.dump(Ridge().fit(X, X[:, 0]), tmp_path / "ridge.skops")
    engine = engine_of_file(tmp_path / "ridge.skops")
    for name, value in (("good", 0.5), ("bad", np.nan)):
        tensors = [to_tensor("input", np.full((1, 5), value))]
        engine.add(predict_request(tensors, (), engine.info, request_id=name))
    outputs = {one.request_id: one for one in engine.step()}
    assert outputs["good"].finish_reason == "stop"
    assert outputs["bad"].refused
    assert "contains NaN" in (outputs["bad"].error or "")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("model.ubj", b"not a model", "XGBoost .* cannot load it"),
        ("model.json", b'{"learner": 3}', "XGBoost .* cannot load it"),
        ("model.txt", b"tree\nversion=v4\n", "LightGBM .* cannot load it"),
        ("model.skops", b"not a model", "skops cannot load it"),
        ("model.pmml", b"<PMML/>", "is a PMML model: .*skl2onnx"),
        ("model.tflite", b"", "is a TensorFlow model: .*tf2onnx"),
        ("model.pkl", pickle.dumps(3), r"is a pickle, .*skops\.io\.dump"),
        ("model.joblib", b"", "is a pickle"),
        ("notes.txt", b"tree of life", "is a file; give its folder"),
        ("config.json", b"{}", "is a file; give its folder"),
    ],
)
def test_files_that_cannot_be_served(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Exception, match=says):
        engine_of_file(tmp_path / name)


def test_the_engine_follows_from_the_files(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(UnsupportedModel, match="TensorFlow"):
        resolve_model(str(tmp_path))
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "merges.txt").write_text("#version")
    assert engine_of(str(folder)) == "native"
    (folder / "model.txt").write_text("tree\n")
    assert engine_of(str(folder)) == "lightgbm"
    (folder / "model.safetensors").write_text("")
    assert engine_of(str(folder)) == "native"
