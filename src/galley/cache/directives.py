"""How a request wants its answer cached: ``Cache-Control``, ``x-galley-cache`` and its relatives."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, get_args

from galley.errors import RequestError, shown
from galley.settings.cache import CacheMode

CONTROL_HEADER: Final = "cache-control"
MODE_HEADER: Final = "x-galley-cache"
TTL_HEADER: Final = "x-galley-cache-ttl"
TAG_HEADER: Final = "x-galley-cache-tag"
AGE_HEADER: Final = "x-galley-cache-age"
KEY_HEADER: Final = "x-galley-cache-key"

_MODES: Final[tuple[CacheMode, ...]] = get_args(CacheMode)
_SECONDS: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}", re.ASCII)
_MOST_KEYS: Final = 16


@dataclass(frozen=True, kw_only=True)
class Directives:
    """The caching that a request wants.

    Attributes:
        mode: overrides the tenant's and the model's; None: it does not.
        reads: whether a stored answer may be used.
        writes: whether the answer may be stored.
        only_stored: whether nothing but a stored answer is wanted.
        max_age: age in seconds beyond which a stored answer is not used.
        ttl: seconds for which the answer may be used; None: as long as the server keeps any.
        tag: a label by which the stored answer can be listed and removed.
    """

    mode: CacheMode | None = None
    reads: bool = True
    writes: bool = True
    only_stored: bool = False
    max_age: float = math.inf
    ttl: float | None = None
    tag: str = ""


NO_DIRECTIVES: Final = Directives()


def read_directives(headers: Mapping[str, str]) -> Directives:
    """Return the wish that a request's headers express.

    Args:
        headers: by lower-case name.

    Raises:
        RequestError: a header has a value that cannot be honored; the error names the header.
    """
    given = [headers.get(n) for n in (CONTROL_HEADER, MODE_HEADER, TTL_HEADER, TAG_HEADER)]
    control, mode, ttl, tag = given
    if control is mode is ttl is tag is None:
        return NO_DIRECTIVES
    directives = _cache_control(control or "")
    if mode is not None and mode not in _MODES:
        raise _refused(MODE_HEADER, mode, f"it takes {', '.join(_MODES[:-1])} or {_MODES[-1]}")
    if tag is not None and not _TAG.fullmatch(tag):
        raise _refused(TAG_HEADER, tag, "it takes up to 64 letters, digits and . _ : -")
    age = directives.get("max-age")
    return Directives(
        mode=mode,
        reads="no-cache" not in directives,
        writes="no-store" not in directives,
        only_stored="only-if-cached" in directives,
        max_age=math.inf if age is None else _seconds(CONTROL_HEADER, age, 0),
        ttl=None if ttl is None else _seconds(TTL_HEADER, ttl, 1),
        tag=tag or "",
    )


def _cache_control(text: str) -> dict[str, str]:
    """Parse a Cache-Control header (RFC 9111, section 5.2); those that mean nothing here are kept."""
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        found[name.strip().lower()] = value.strip().strip('"')
    return found


def _seconds(header: str, text: str, least: int) -> float:
    if not _SECONDS.fullmatch(text) or int(text) < least:
        raise _refused(header, text, f"it takes whole seconds, at least {least}")
    return float(text)


def _refused(header: str, value: str, takes: str) -> RequestError:
    return RequestError(f"The header {header} has the value {shown(value)}; {takes}", param=header)


@dataclass
class Outcome:
    """The cache's result for one request.

    Attributes:
        hits: texts that were answered from the store, or by an equal request that is running.
        misses: texts that were looked up and computed.
        bypassed: texts that were not looked up.
        similarity: cosine of the question and the one whose answer was used; None: they were equal.
        age: seconds since the oldest answer used was stored.
        keys: keys of the texts, in hexadecimal.
    """

    hits: int = 0
    misses: int = 0
    bypassed: int = 0
    similarity: float | None = None
    age: float = 0.0
    keys: list[str] = field(default_factory=list)

    @property
    def word(self) -> str:
        """Return what happened to all texts together.

        "hit" if all were hits, "semantic" with the similarity if one was that of another question, "bypass"
        if none was looked up, and else "miss".
        """
        if self.misses or (self.hits and self.bypassed):
            return "miss"
        if self.similarity is not None:
            return f"semantic {self.similarity:.2f}"
        return "hit" if self.hits else "bypass"

    def headers(self) -> dict[str, str]:
        """Return the headers of the response."""
        headers = {MODE_HEADER: self.word}
        if self.word.startswith(("hit", "semantic")):
            headers[AGE_HEADER] = str(int(self.age))
        if self.keys:
            headers[KEY_HEADER] = ",".join(self.keys[:_MOST_KEYS])
        return headers
