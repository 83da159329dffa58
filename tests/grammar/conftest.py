"""The vocabulary of a tiny tokenizer."""

from pathlib import Path

import pytest
from llguidance import LLTokenizer

from galley.grammar.vocabulary import load_vocabulary
from tests.checkpoints import make_tokenizer


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    folder: Path = tmp_path_factory.mktemp("vocabulary")
    make_tokenizer(folder)
    return load_vocabulary(folder, eos_token_ids=[0])
