"""Models in CTranslate2's format, written by its own converter, and CTranslate2 alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from galley.formats.ctranslate2 import read_vocabulary
from galley.runtimes.ctranslate2 import load
from galley.runtimes.text_engine import TextEngine
from galley.settings.engine import EngineSettings
from galley.settings.engine_choice import CTRANSLATE2_ENGINE
from tests.checkpoints import make_checkpoint
from tests.runtimes.language_models import CONTEXT, VOCABULARY
from tests.speech import tiny

_BEGIN: Final = "<|im_start|>"
"""CTranslate2 loads no language model without a token for the beginning of texts, which it does not use."""


def make_decoder(folder: Path, **changes: Any) -> Path:
    """Write a random language model; return its folder, next to that of the original checkpoint."""
    converters = pytest.importorskip("ctranslate2.converters", reason="extra ctranslate2")
    original = folder.parent / f"{folder.name}-checkpoint"
    make_checkpoint(original, "llama", vocab_size=VOCABULARY, **changes)
    files = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    converters.TransformersConverter(str(original), copy_files=files).convert(str(folder))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "bos_token": _BEGIN}))
    return folder


def make_whisper(folder: Path, **changes: Any) -> Path:
    """Write a random Whisper model; return its folder."""
    converters = pytest.importorskip("ctranslate2.converters", reason="extra ctranslate2")
    original = folder.parent / f"{folder.name}-checkpoint"
    original.mkdir()
    tiny.make_whisper(original, **changes)
    files = ["tokenizer.json", "preprocessor_config.json"]
    converters.TransformersConverter(str(original), copy_files=files).convert(str(folder))
    return folder


def engine_for(path: Path, options: str = "", **settings: Any) -> TextEngine[Any]:
    """Return the engine of a folder."""
    settings = {"threads": 1, "max_model_len": CONTEXT, **settings}
    return load(
        EngineSettings(
            model=str(path), engine=CTRANSLATE2_ENGINE, engine_options=options, **settings
        ),
        path,
    )


def decoder_alone(path: Path) -> Callable[[list[int], dict[str, Any]], list[int]]:
    """Return a function that continues one prompt with CTranslate2, given its own parameters."""
    library = pytest.importorskip("ctranslate2", reason="extra ctranslate2")
    model = library.Generator(str(path), intra_threads=1)
    vocabulary = read_vocabulary(path)

    def continued(prompt: list[int], parameters: dict[str, Any]) -> list[int]:
        [result] = model.generate_batch(
            [[vocabulary[token] for token in prompt]],
            **{"include_prompt_in_result": False, "end_token": [], **parameters},
        )
        return list(result.sequences_ids[0])

    return continued


def whisper_alone(path: Path) -> Callable[..., Any]:
    """Return a function that transcribes features ``[frames, mels]`` with CTranslate2 alone."""
    library = pytest.importorskip("ctranslate2", reason="extra ctranslate2")
    model = library.models.Whisper(str(path), intra_threads=1)

    def transcribed(features: Any, prompt: list[int], **parameters: Any) -> Any:
        audio = np.ascontiguousarray(features.T[None], np.float32)
        [result] = model.generate(
            library.StorageView.from_array(audio), [prompt], return_scores=True, **parameters
        )
        return result

    return transcribed
