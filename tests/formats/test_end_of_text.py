"""End tokens where neither generation_config.json nor config.json names one: the tokenizer's eos."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from galley import LLM, SamplingParams
from galley.formats.reader import open_checkpoint
from tests.checkpoints import make_checkpoint
from tests.text import trained

OBJECT = {"__type": "AddedToken", "content": "<|im_end|>", "special": True}
FILES: dict[str, dict[str, Any]] = {
    "text": {"tokenizer_config.json": {"eos_token": "<|im_end|>"}},
    "object": {"tokenizer_config.json": {"eos_token": OBJECT}},
    "vocabulary": {"tokenizer_config.json": {"eos_token": "a"}},
    "map": {
        "tokenizer_config.json": {"eos_token": None},
        "special_tokens_map.json": {"eos_token": {"content": "<|im_end|>"}},
    },
    "decoder": {
        "tokenizer_config.json": {
            "eos_token": "<|stop|>",
            "added_tokens_decoder": {"468": {"content": "<|stop|>", "special": True}},
        }
    },
    "added": {
        "tokenizer_config.json": {"eos_token": "<|stop|>"},
        "added_tokens.json": {"<|stop|>": 468},
    },
    "none": {"tokenizer_config.json": {"eos_token": None}},
}


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        path = folder / name
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**before, **content}))
    return folder


@pytest.mark.parametrize("name", FILES)
def test_the_tokenizers_end_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    folder = write(trained.byte_level(tmp_path), **FILES[name])
    config = {"model_type": "llama", "eos_token_id": None}
    write(folder, **{"config.json": config, "generation_config.json": {"top_k": 3}})
    expected = AutoTokenizer.from_pretrained(folder).eos_token_id
    assert (expected is None) is (name == "none")
    found = () if expected is None else (expected,)
    assert open_checkpoint(folder).eos_token_ids == found
    # The model's files take precedence.
    write(folder, **{"config.json": {"eos_token_id": 7}})
    assert open_checkpoint(folder).eos_token_ids == (7,)
    write(folder, **{"generation_config.json": {"eos_token_id": [8, 9]}})
    assert open_checkpoint(folder).eos_token_ids == (8, 9)


def test_a_text_stops_there(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, eos_token_id=None, generation={})
    greedy = SamplingParams(temperature=0.0, max_tokens=12)
    with LLM(str(folder), threads=1) as llm:
        [whole] = llm.generate("the cat", greedy)
        pieces = [llm.tokenizer.piece(token) for token in whole.token_ids]
    assert len(pieces) == 12
    write(folder, **{"tokenizer_config.json": {"eos_token": pieces[5]}})
    with LLM(str(folder), threads=1) as llm:
        [short] = llm.generate("the cat", greedy)
    assert short.finish_reason == "stop"
    assert short.token_ids == whole.token_ids[: pieces.index(pieces[5]) + 1]
