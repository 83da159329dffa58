"""The file of API keys: a YAML list of tenants with hashed keys and limits, or one plain key per line."""

import hashlib
import math
import os
import re
import stat
from collections.abc import Iterable
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from galley.errors import SettingsError
from galley.settings.cache import CacheMode

LOWEST_PRIORITY: Final = 100
"""The lowest priority of tenants and of requests for text; the highest is its negative."""

_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z"
_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")
_YAML: Final = re.compile(r"^(tenants\s*:|\s*-\s|[\[{])", re.MULTILINE)
"""Matches any file that lists tenants, even one with errors."""

_SHORTEST: Final = 8
_PLAIN_KEY: Final = re.compile(rf"[\w.~+/-]{{{_SHORTEST},}}=*", re.ASCII)
"""Syntax of a token in a header (RFC 6750, section 2.1), used to tell keys from other lines."""

_MOST_BYTES: Final = 4 << 20
_Count: TypeAlias = Annotated[int, Meta(ge=1, le=10**12)]


class Tenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One customer of the server: the permissions and limits of its keys, and its share of the engine.

    Attributes:
        name: its name in logs and metrics; "" if the server requires no key.
        weight: its share of the engine when tenants compete, relative to the others' weights.
        priority: added to the priority of its requests; a lower value is scheduled sooner.
        requests_per_minute, tokens_per_minute: limits; None: unlimited. Tokens are those of prompts and of
            generated texts.
        concurrency: the most requests, recordings and live streams at a time.
        max_context: the most tokens of a prompt and its text together; None: the model's context.
        response_cache: overrides the models' setting of that name; None: it does not.
        admin: whether its keys may use the admin routes, too.
    """

    name: str = ""
    weight: Annotated[float, Meta(gt=0, le=10**6)] = 1.0
    priority: Annotated[int, Meta(ge=-LOWEST_PRIORITY, le=LOWEST_PRIORITY)] = 0
    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    concurrency: _Count | None = None
    max_context: _Count | None = None
    response_cache: CacheMode | None = None
    admin: bool = False


KeyTable: TypeAlias = dict[bytes, Tenant]
"""SHA-256 digest of a key -> its tenant."""


def digest(key: str) -> bytes:
    """Return the digest stored for a key. Keys are long and random, so a plain SHA-256 hides them."""
    return hashlib.sha256(key.encode()).digest()


def check_name(name: str, where: str = "") -> None:
    """Raise SettingsError, which begins with ``where``, if ``name`` is not valid for a tenant."""
    if not re.match(_NAME, name):
        raise SettingsError(
            f"{where}{name[:100]!r} is not a valid tenant name; use up to 64 letters, digits and . _ -"
        )


def plain_table(keys: Iterable[str], source: str) -> KeyTable:
    """Return one tenant without limits for each key; the names reveal nothing about the keys.

    Raises:
        SettingsError: a key could not be sent in a header; the error names ``source``, never the key.
    """
    table = {}
    for key in keys:
        # Headers are Latin-1 at best, and clients encode other characters differently.
        if not (key.isascii() and key.isprintable() and key == key.strip()):
            raise SettingsError(
                f"{source}: a key contains a character that is not printable ASCII, or begins or ends with "
                "a space, so no client can send it in a header"
            )
        hashed = digest(key)
        table[hashed] = Tenant(name=f"key-{hashed.hex()[:8]}")
    return table


def read_key_file(path: str) -> KeyTable:
    """Read the keys of a file.

    Raises:
        SettingsError: the file cannot be read, holds no key, or has an invalid line; the error names the
            line and the tenant, and quotes no value.
    """
    source = f"api_key_file {path}"
    text = _text(path, source)
    lines = {number: line.strip() for number, line in enumerate(text.splitlines(), 1)}
    wrong = [number for number, line in lines.items() if line and not _PLAIN_KEY.fullmatch(line)]
    if not wrong:
        table = plain_table(filter(None, lines.values()), source)
    elif _YAML.search(text):
        table = _tenants(text, source)
    else:
        raise SettingsError(
            f"{source}, line {wrong[0]}: this is neither an API key (at least {_SHORTEST} letters, "
            "digits and - . _ ~ + /) nor the start of tenants: or of a list of tenants (- name: ...)"
        )
    if not table:
        raise SettingsError(
            f"{source} contains no key; write one key per line, or a list of tenants:"
        )
    return table


def _text(path: str, source: str) -> str:
    """Return the file's text without blocking: the writer of a pipe, for example, may never come."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SettingsError(f"{source} is not a regular file")
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise SettingsError(f"{source} has more than {_MOST_BYTES} bytes")
        return data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {source}: {error}") from error


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _tenants(text: str, source: str) -> KeyTable:
    table: KeyTable = {}
    names: set[str] = set()
    for line, fields in _entries(text, source):
        where = f"{source}, line {line}: "
        name = fields.get("name")
        where += f"tenant {name!r}" if isinstance(name, str) else "a tenant without a name"
        hashes = fields.pop("key_sha256", None)
        try:
            tenant = msgspec.convert(fields, Tenant)
        except msgspec.ValidationError as error:
            raise SettingsError(f"{where}: {_message(error)}") from None
        if math.isnan(tenant.weight):
            raise SettingsError(f"{where}: weight is not a number")
        check_name(tenant.name, f"{where}: ")
        if tenant.name in names:
            raise SettingsError(f"{where}: the name occurs twice")
        names.add(tenant.name)
        for key in _digests(hashes, where):
            if key in table:
                raise SettingsError(f"{where}: its key is also used by {table[key].name!r}")
            table[key] = tenant
    return table


def _digests(hashes: object, where: str) -> list[bytes]:
    given = hashes if isinstance(hashes, list) else [hashes]
    digests = [
        bytes.fromhex(text)
        for text in given
        if isinstance(text, str) and _SHA256.fullmatch(text) and bytes.fromhex(text) != digest("")
    ]
    if not digests or len(digests) < len(given):
        raise SettingsError(
            f"{where}: key_sha256 must be the SHA-256 of the key, 64 hexadecimal digits in quotes, or a "
            "list of these; galley keygen NAME prints both"
        )
    return digests


def _message(error: msgspec.ValidationError) -> str:
    """Rephrase the validator's message in terms of the file: ``$.weight`` is the field weight."""
    problem, _, path = str(error).partition(" - at ")
    field = path.strip("`").removeprefix("$").removeprefix(".")
    known = ", ".join(("key_sha256", *Tenant.__struct_fields__))
    if "unknown field" in problem:
        return f"{problem}; known: {known}"
    return f"{field}: {problem}" if field else problem


def _entries(text: str, source: str) -> "list[tuple[int, dict[str, Any]]]":
    """Return each tenant's fields, with the line at which it begins."""
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        listed = root
        if isinstance(root, yaml.MappingNode):
            if [key.value for key, _ in root.value] != ["tenants"]:
                raise SettingsError(
                    f"{source}: must have tenants: at the top level, and nothing else"
                )
            listed = root.value[0][1]
        if not isinstance(listed, yaml.SequenceNode):
            raise SettingsError(f"{source}: tenants must be a list")
        return [(node.start_mark.line + 1, _fields(loader, node, source)) for node in listed.value]
    except yaml.MarkedYAMLError as error:
        # The error's own text quotes the line, which can contain a key.
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SettingsError(f"{source}{line} is not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, SettingsError):
            raise
        raise SettingsError(f"{source} is not valid YAML: {type(error).__name__}") from None
    finally:
        loader.dispose()


def _fields(loader: Any, node: Any, source: str) -> dict[str, Any]:
    where = f"{source}, line {node.start_mark.line + 1}"
    if node.id != "mapping":
        raise SettingsError(f"{where}: a tenant must be a mapping: name, key_sha256, weight, ...")
    fields: dict[str, Any] = {}
    for key, value in node.value:
        name = str(key.value)
        if name in fields:
            raise SettingsError(
                f"{source}, line {key.start_mark.line + 1}: {name} occurs twice in one tenant"
            )
        fields[name] = loader.construct_object(value, deep=True)
    return fields
