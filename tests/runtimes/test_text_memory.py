"""The memory of language models that other libraries run: measured, and refused where it does not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from galley.engine.memory import RESERVE_BYTES
from galley.errors import NotEnoughMemory
from galley.runtimes import library_memory, text_memory
from galley.server.ledger import ledger_lines
from galley.service.protocol import find_loader
from galley.settings.engine import EngineSettings
from galley.types.model_info import Ledger
from tests.runtimes.ctranslate2_folders import make_decoder, make_whisper
from tests.runtimes.genai_folders import make_genai
from tests.runtimes.language_models import CONTEXT, make_gguf

pytestmark = pytest.mark.xdist_group("text_memory")

KV_TOKENS: Final = 4096


class Library(NamedTuple):
    """A library: its module, a function that writes a model, the files of its weights, and settings."""

    module: str
    make: Callable[[Path], Path]
    weights: str
    settings: dict[str, Any]


LIBRARIES: Final = {
    "openvino": Library(
        "openvino_genai",
        lambda folder: make_gguf(folder / "tiny.gguf"),
        "",
        {"kv_cache_tokens": KV_TOKENS, "max_model_len": CONTEXT},
    ),
    "llama.cpp": Library(
        "llama_cpp",
        lambda folder: make_gguf(folder / "tiny.gguf"),
        "",
        {"kv_cache_tokens": KV_TOKENS, "max_model_len": CONTEXT},
    ),
    "ctranslate2": Library(
        "ctranslate2",
        lambda folder: make_decoder(folder / "tiny"),
        "model.bin",
        {"max_model_len": CONTEXT},
    ),
    "ctranslate2-whisper": Library(
        "ctranslate2", lambda folder: make_whisper(folder / "tiny"), "model.bin", {}
    ),
    "onnxruntime-genai": Library(
        "onnxruntime_genai",
        lambda folder: make_genai(folder / "tiny"),
        "model.onnx*",
        {"max_model_len": CONTEXT},
    ),
}


class Model(NamedTuple):
    """A model, and how it is loaded."""

    engine: str
    path: Path
    weights: int
    settings: dict[str, Any]

    def ledger(self) -> Ledger:
        """Load the model; return its ledger, which was announced."""
        announced: list[Ledger] = []
        settings = EngineSettings(
            model=str(self.path), engine=self.engine, threads=1, **self.settings
        )
        made = find_loader(self.engine)(settings, self.path, on_ledger=announced.append)
        assert announced == [made.info.ledger]
        made.close()
        return announced[0]


@pytest.fixture(scope="module", params=LIBRARIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    library = LIBRARIES[request.param]
    pytest.importorskip(library.module, reason=f"engine {request.param}")
    path = library.make(tmp_path_factory.mktemp("memory"))
    files = [path] if path.is_file() else list(path.glob(library.weights))
    size = sum(file.stat().st_size for file in files)
    return Model(request.param.removesuffix("-whisper"), path, size, library.settings)


def test_the_memory_is_measured(model: Model) -> None:
    ledger = model.ledger()
    assert ledger.weights == model.weights
    assert ledger.kv == (KV_TOKENS if "kv_cache_tokens" in model.settings else 0) * (
        ledger.kv_per_token
    )
    assert (ledger.device, ledger.threads, ledger.executor) == ("cpu", 1, model.engine)
    assert ledger.total == ledger.weights + ledger.kv + ledger.buffers + RESERVE_BYTES
    assert ledger.fits
    lines = ledger_lines("tiny", ledger)
    assert lines[0].startswith("tiny: ")
    assert lines[0].endswith(" tokens")
    assert lines[1].endswith(", 1 thread")
    names = [line.split()[0] for line in lines[1:]]
    kv = ["KV"] if ledger.kv else []
    assert names == ["runs", "weights", *kv, "buffers", "reserve", "total"]


def test_a_model_that_cannot_fit_is_not_loaded(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = model.ledger()
    free = RESERVE_BYTES + planned.weights + planned.kv - 1
    monkeypatch.setattr(library_memory, "available_memory", lambda: free)
    monkeypatch.setattr(text_memory.TextMemory, "loaded", lambda memory: 1 / 0)
    with pytest.raises(NotEnoughMemory, match=r"(?s)tiny.* needs .*1 B more memory") as error:
        model.ledger()
    assert ("--kv-cache-tokens" in str(error.value)) == bool(planned.kv)


def test_what_is_measured_has_to_fit(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library takes more than the plan, as soon as it has been asked for it."""
    planned = model.ledger()
    taken = iter((1, 1 + planned.weights + planned.kv + 2))
    monkeypatch.setattr(text_memory, "resident_memory", lambda pid: next(taken))
    free = RESERVE_BYTES + planned.weights + planned.kv + 1
    monkeypatch.setattr(library_memory, "available_memory", lambda: free)
    with pytest.raises(NotEnoughMemory, match=r"(?s)buffers 2 B.*1 B more memory"):
        model.ledger()
