"""sentence-transformers' settings for a checkpoint's texts: maximum length, and lower case."""

from pathlib import Path
from typing import Any, Final, NamedTuple

from galley.errors import CheckpointError, shown
from galley.formats.json_file import is_there, read_json

_KINDS: Final = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_FILES: Final = tuple(f"sentence_{kind}_config.json" for kind in _KINDS)
"""Possible names of the file; early releases named it after the model's type."""


class SentenceConfig(NamedTuple):
    """Settings for the texts of an embedding model or a reranker.

    Attributes:
        max_tokens: maximum tokens of a text; None: not specified here.
        lower: whether texts are converted to lower case first.
    """

    max_tokens: int | None = None
    lower: bool = False


def read_sentence_config(folder: Path) -> SentenceConfig:
    """Read the first of the files that exists; return empty settings if there is none.

    Raises:
        CheckpointError: it is damaged.
    """
    path = next((folder / name for name in _FILES if is_there(folder / name)), None)
    if path is None:
        return SentenceConfig()
    config = read_json(path)
    longest, lower = config.get("max_seq_length"), config.get("do_lower_case")
    if longest is not None and (type(longest) is not int or longest < 1):
        raise _wrong(path, "max_seq_length", longest, "a positive whole number")
    if not isinstance(lower, bool | None):
        raise _wrong(path, "do_lower_case", lower, "true or false")
    return SentenceConfig(longest, bool(lower))


def _wrong(path: Path, field: str, value: Any, expected: str) -> CheckpointError:
    return CheckpointError(f"is {shown(value)}, expected {expected}", file=str(path), field=field)
