from pathlib import Path

import pytest

from galley.text.tokenizer import Tokenizer
from tests.text import trained

KINDS = {
    "byte_level": lambda folder: trained.byte_level(folder),
    "byte_level_whole_words": lambda folder: trained.byte_level(folder, ignore_merges=True),
    "sentencepiece": lambda folder: trained.sentencepiece(folder),
    "sentencepiece_metaspace": lambda folder: trained.sentencepiece(folder, legacy=False),
}


@pytest.fixture(scope="session")
def byte_level_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained.byte_level(tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="session")
def sentencepiece_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained.sentencepiece(tmp_path_factory.mktemp("sentencepiece"))


@pytest.fixture(scope="session", params=list(KINDS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return KINDS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.fixture(scope="session")
def byte_level(byte_level_folder: Path) -> Tokenizer:
    return Tokenizer.load(byte_level_folder)


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_folder: Path) -> Tokenizer:
    return Tokenizer.load(sentencepiece_folder)
