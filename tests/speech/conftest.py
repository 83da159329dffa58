from pathlib import Path

import pytest

from galley.text.tokenizer import Tokenizer
from tests.speech import tiny


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    return Tokenizer.load(tiny.write_text_side(folder))
