"""Tokens declared outside tokenizer.json, in every file from which transformers reads them."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from galley import LLM, SamplingParams
from galley.errors import CheckpointError, RequestError
from galley.grammar.vocabulary import load_vocabulary
from galley.text.tokenizer import Tokenizer
from tests.checkpoints import VOCAB_SIZE, make_checkpoint
from tests.text import trained

CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
TEXTS = (
    "a <|tool|> b<|tool|>",
    "<|tool|>\n  <|more|>x <|think|> y",
    "the <tok> <|image|>cat",
    " <|MORE|> <|Tool|>",
)


def token(content: str, **flags: bool) -> dict[str, Any]:
    known = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    return {"content": content, "special": True, **known, **flags}


def listed_ids(*texts: str) -> dict[str, int]:
    return {text: 5000 - i for i, text in enumerate(texts)}


DECLARED: dict[str, dict[str, Any]] = {
    "decoder": {CONFIG: {"added_tokens_decoder": {"900": token("<|tool|>")}}},
    "decoder-flags": {
        CONFIG: {
            "added_tokens_decoder": {
                "901": token("<|more|>", lstrip=True, rstrip=True),
                "900": token("<|tool|>", special=False, single_word=True),
                "902": token("<tok>", normalized=True, special=False),
            }
        }
    },
    "decoder-and-roles": {
        CONFIG: {
            "added_tokens_decoder": {"900": token("<|tool|>")},
            "pad_token": "<|more|>",
            "image_token": "<|image|>",
            "additional_special_tokens": ["<|think|>", "<|tool|>"],
        },
        MAP: {"additional_special_tokens": ["<tok>"]},
        ADDED: {"<tok>": 950},
    },
    "additional": {CONFIG: {"additional_special_tokens": ["<|tool|>", "<|more|>"]}},
    "extra": {CONFIG: {"extra_special_tokens": ["<|think|>"]}},
    "extra-named": {CONFIG: {"extra_special_tokens": {"image_token": "<|image|>"}}},
    "added": {ADDED: listed_ids("<|tool|>", "<tok>")},
    "added-special": {
        ADDED: listed_ids("<|tool|>", "<|more|>", "<tok>"),
        CONFIG: {"extra_special_tokens": ["<|tool|>"], "pad_token": "<|more|>"},
    },
    "role": {CONFIG: {"pad_token": "<|more|>"}, MAP: {"unk_token": {"content": "<tok>"}}},
}


def write(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        path = folder / name
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**before, **content}))
    return folder


@pytest.mark.parametrize("name", DECLARED)
@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_tokens_are_those_of_transformers(kind: str, name: str, tmp_path: Path) -> None:
    folder = write(getattr(trained, kind)(tmp_path), DECLARED[name])
    tokenizer, truth = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = truth(text).input_ids
        assert tokenizer.encode(text) == ids, text
        for skip in (True, False):
            assert tokenizer.decode(ids, skip_special_tokens=skip) == truth.decode(
                ids, skip_special_tokens=skip
            )
    assert tokenizer.special_ids >= set(truth.all_special_ids)
    roles = {k: v for k, v in truth.special_tokens_map.items() if isinstance(v, str)}
    assert roles.items() <= tokenizer.special_tokens.items()


@pytest.mark.parametrize("listed", [token("<|tool|>"), "<|tool|>"], ids=["object", "text"])
@pytest.mark.parametrize("added", [{}, {ADDED: {"<|tool|>": 4000}}], ids=["alone", "added"])
def test_additional_special_tokens_of_the_map_are_special(
    listed: Any, added: dict[str, Any], tmp_path: Path
) -> None:
    """As in transformers 4, which wrote such files; 5 reads them as texts, or as ordinary tokens."""
    files = {MAP: {"additional_special_tokens": [listed, "<|more|>"]}, **added}
    tokenizer = Tokenizer.load(write(trained.byte_level(tmp_path), files))
    ids = tokenizer.encode("<|tool|><|more|>", add_special_tokens=False)
    assert len(ids) == 2
    assert tokenizer.special_ids >= set(ids)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({CONFIG: {"added_tokens_decoder": {"x": token("<a>")}}}, "added_tokens_decoder"),
        ({CONFIG: {"added_tokens_decoder": {"9": "<a>"}}}, r"added_tokens_decoder\.9: is '<a>'"),
        ({CONFIG: {"added_tokens_decoder": {"9": {"content": ""}}}}, r"added_tokens_decoder\.9"),
        (
            {CONFIG: {"added_tokens_decoder": {"9": {"content": "<a>", "lstrip": 3}}}},
            r"added_tokens_decoder\.9",
        ),
        ({CONFIG: {"additional_special_tokens": [3]}}, "additional_special_tokens: is"),
        ({CONFIG: {"extra_special_tokens": "<a>"}}, "extra_special_tokens: is"),
        ({ADDED: {"<a>": "1"}}, "added_tokens.json"),
    ],
)
def test_a_name_that_is_not_a_token_is_refused_and_named(
    files: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=says):
        Tokenizer.load(write(trained.byte_level(tmp_path), files))


def test_a_grammar_knows_the_tokens_too(tmp_path: Path) -> None:
    folder = write(trained.byte_level(tmp_path), DECLARED["decoder"])
    tokenizer = Tokenizer.load(folder)
    [tool] = tokenizer.encode("<|tool|>", add_special_tokens=False)
    vocabulary = load_vocabulary(folder, vocab_size=tool + 5)
    assert vocabulary.is_special_token(tool)
    assert vocabulary.vocab_size == tool + 5


def test_added_tokens_may_lie_beyond_the_embedding(tmp_path: Path) -> None:
    """As in Gemma 3's text models."""
    folder = write(trained.byte_level(tmp_path), DECLARED["decoder"])
    tokenizer = Tokenizer.load(folder)
    [tool] = tokenizer.encode("<|tool|>", add_special_tokens=False)
    tokenizer.check_vocabulary(tool, folder)
    vocabulary = load_vocabulary(folder, vocab_size=tool)
    assert vocabulary.vocab_size == tool
    with pytest.raises(CheckpointError, match="but vocab_size in"):
        tokenizer.check_vocabulary(tokenizer.last_token[1], folder)


def test_a_request_with_a_token_beyond_the_embedding_is_refused(tmp_path: Path) -> None:
    extra = [f"<|image-{i}|>" for i in range(VOCAB_SIZE)]
    folder = write(make_checkpoint(tmp_path), {CONFIG: {"extra_special_tokens": extra}})
    [last] = Tokenizer.load(folder).encode(extra[-1])
    assert last >= VOCAB_SIZE
    with LLM(str(folder), threads=1) as llm:
        [fine] = llm.generate("the cat", SamplingParams(max_tokens=2))
        assert len(fine.token_ids) == 2
        refusal = f"contains token id {last}; ids run from 0 to {VOCAB_SIZE - 1}"
        with pytest.raises(RequestError, match=refusal):
            llm.generate(f"the {extra[-1]}")
