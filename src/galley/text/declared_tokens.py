"""Tokens that a checkpoint declares outside ``tokenizer.json``, and the roles of tokens.

Files are resolved as in transformers: ``added_tokens_decoder``, ``additional_special_tokens``,
``extra_special_tokens`` and every ``*_token`` of ``tokenizer_config.json``; if that file has no
``added_tokens_decoder``, also ``added_tokens.json`` and ``special_tokens_map.json``.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tokenizers import AddedToken, Tokenizer

from galley.errors import CheckpointError, shown
from galley.formats.json_file import is_there, read_json

CONFIG_FILE: Final = "tokenizer_config.json"
SPECIAL_TOKENS_FILE: Final = "special_tokens_map.json"
ADDED_TOKENS_FILE: Final = "added_tokens.json"

_DECODER: Final = "added_tokens_decoder"
_LISTS: Final = ("extra_special_tokens", "additional_special_tokens")
_ROLES: Final = tuple(
    f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")


class Declared(NamedTuple):
    """The declarations in a checkpoint's files.

    Attributes:
        config: ``tokenizer_config.json`` and ``special_tokens_map.json``, merged.
        roles: role -> text, such as ``{"bos_token": "<s>"}``.
        listed: tokens with complete definitions.
        named: special tokens known by their texts only; ``tokenizer.json`` may define more of them.
    """

    config: Mapping[str, Any]
    roles: Mapping[str, str]
    listed: tuple[AddedToken, ...] = ()
    named: tuple[AddedToken, ...] = ()

    def declare(self, inner: Tokenizer) -> None:
        """Add the tokens that ``inner`` lacks or defines differently; new ones get the next ids."""
        known = {repr(token) for token in inner.get_added_tokens_decoder().values()}
        inner.add_tokens([token for token in self.listed if repr(token) not in known])
        texts = {token.content for token in inner.get_added_tokens_decoder().values()}
        inner.add_tokens([token for token in self.named if token.content not in texts])


def read_declared(folder: Path) -> Declared:
    """Read the declarations of the files in a checkpoint's folder.

    Raises:
        CheckpointError: a file is damaged, or a token is invalid.
    """
    config_file, map_file = folder / CONFIG_FILE, folder / SPECIAL_TOKENS_FILE
    config = read_json(config_file) if is_there(config_file) else {}
    special = read_json(map_file) if is_there(map_file) else {}
    given = config.get(_DECODER)
    config = {**config, **special} if given is None else {**special, **config}
    roles = dict(_roles(config))
    extra = [
        token for token in _extra(config, str(config_file)) if str(token) not in roles.values()
    ]
    if given is None:
        names = {*roles.values(), *(token.content for token in extra)}
        listed = list(_listed(folder / ADDED_TOKENS_FILE, names))
    else:
        listed = list(_decoder(given, str(config_file)))
    named = [AddedToken(text, normalized=False, special=True) for text in roles.values()]
    return Declared(config, roles, tuple(listed), (*named, *extra))


def _roles(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the role and text of every ``*_token``, and of tokens with custom roles."""
    lists = config.get(_LISTS[0])
    named = lists if isinstance(lists, Mapping) else {}
    others = [name for name in config if name.endswith("_token") and name not in _ROLES]
    for name in (*_ROLES, *others, *named):
        text = _content(named[name] if name in named else config.get(name))
        if text:
            yield name, text


def _extra(config: Mapping[str, Any], file: str) -> Iterator[AddedToken]:
    """Yield special tokens without a role."""
    for name in _LISTS:
        value = config.get(name) or []
        if isinstance(value, Mapping):
            continue
        if not isinstance(value, list) or not all(_content(token) for token in value):
            raise CheckpointError(f"is {shown(value)}, not a list of tokens", file=file, field=name)
        for token in value:
            if isinstance(token, Mapping):
                yield _token({**token, "special": True}, file, name)
            else:
                yield AddedToken(token, normalized=False, special=True)
        if value:
            return


def _decoder(given: Any, file: str) -> Iterator[AddedToken]:
    """Yield the tokens of ``added_tokens_decoder`` (id -> token), in the order of ids."""
    if not isinstance(given, Mapping) or not all(_is_id(key) for key in given):
        raise CheckpointError("is not an object of ids and tokens", file=file, field=_DECODER)
    for key in sorted(given, key=int):
        yield _token(given[key], file, f"{_DECODER}.{key}")


def _listed(path: Path, special: set[str]) -> Iterator[AddedToken]:
    """Yield the tokens of ``added_tokens.json`` (text -> id), in the order of ids."""
    if not is_there(path):
        return
    ids = read_json(path)
    if not all(type(token) is int and token >= 0 for token in ids.values()):
        raise CheckpointError("is not an object of tokens and ids", file=str(path))
    for text in sorted(filter(None, ids), key=lambda text: ids[text]):
        known = text in special
        yield AddedToken(text, normalized=not known, special=known)


def _token(value: Any, file: str, field: str) -> AddedToken:
    flags = {name: value.get(name) for name in _FLAGS} if isinstance(value, Mapping) else {}
    text = _content(value)
    if not text or not flags or not all(isinstance(flag, bool | None) for flag in flags.values()):
        raise CheckpointError(f"is {shown(value)}, not a token", file=file, field=field)
    return AddedToken(text, **{name: flag for name, flag in flags.items() if flag is not None})


def _content(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None


def _is_id(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) < 10
