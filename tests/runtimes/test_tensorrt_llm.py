"""The engine ``tensorrt-llm``: what it refuses, and where the library and a GPU are, its texts."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from galley.errors import SettingsError, UnsupportedModel
from galley.runtimes import tensorrt_llm
from galley.runtimes.text_engine import TextEngine
from galley.settings.engine import EngineSettings
from galley.types import Generate
from tests.runtimes.language_models import (
    CONTEXT,
    GREEDY,
    PROMPTS,
    check_aborts,
    check_continues,
    check_refused,
    generate,
    make_folder,
)

pytestmark = pytest.mark.xdist_group("tensorrt_llm")


def engine_for(folder: Path, **settings: Any) -> TextEngine[Generate]:
    given = EngineSettings(
        model=str(folder), engine="tensorrt-llm", max_model_len=CONTEXT, **settings
    )
    return tensorrt_llm.load(given, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tensorrt") / "tiny")


def test_a_missing_library_is_named_with_its_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    with pytest.raises(SettingsError, match=r"pip install 'galley-inference\[tensorrt-llm\]'"):
        engine_for(folder)


def test_a_default_that_it_would_ignore_is_refused(folder: Path) -> None:
    defaults = ("repetition_penalty=1.1",)
    with pytest.raises(SettingsError, match=r"default of repetition_penalty is 1.1, .*=1$"):
        engine_for(folder, sampling_defaults=defaults)


def test_a_file_is_refused(folder: Path) -> None:
    options = tensorrt_llm.TensorRTOptions()
    sizes: Any = None
    with pytest.raises(UnsupportedModel, match="is not a folder of safetensors"):
        tensorrt_llm.TensorRTRuntime(folder / "model.safetensors", options, sizes)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[TextEngine[Generate]]:
    torch = pytest.importorskip("torch")
    pytest.importorskip("tensorrt_llm", reason="engine tensorrt-llm")
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    engine = engine_for(folder, max_running=32, kv_cache_tokens=4096)
    yield engine
    engine.close()


def test_greedy_texts_are_those_of_the_library(engine: TextEngine[Generate], folder: Path) -> None:
    library: Any = sys.modules["tensorrt_llm"]
    texts = generate(engine, PROMPTS, GREEDY)
    model = library.LLM(str(folder), skip_tokenizer_init=True)
    params = library.SamplingParams(max_tokens=24, ignore_eos=True, end_id=-1, pad_id=0, top_k=1)
    expected = [model.generate(prompt, params, use_tqdm=False) for prompt in PROMPTS]
    assert texts == [list(result.outputs[0].token_ids) for result in expected]


def test_texts_continue_and_end(engine: TextEngine[Generate]) -> None:
    check_continues(engine)
    check_aborts(engine)
    check_refused(engine, "tensorrt-llm", {"seed": 1})
