"""Regular expressions of text formats for which llguidance allows too much or too little."""

from typing import Final

_LEAP_YEAR: Final = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DAY: Final = (
    rf"(?:{_LEAP_YEAR}-02-29|[0-9]{{4}}-(?:02-(?:0[1-9]|1[0-9]|2[0-8])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])))"
)
_SECONDS: Final = r"[0-9]{2}:[0-9]{2}:[0-5][0-9]"


def _leap_seconds(signs: str) -> str:
    """Return the expression of 23:59:60 UTC at usual offsets: minutes are 0, 30 or 45."""
    moments = []
    for sign in signs:
        for offset in (60 * hours + minutes for hours in range(24) for minutes in (0, 30, 45)):
            shown = (23 * 60 + 59 + (offset if sign == "+" else -offset)) % (24 * 60)
            zone = rf"[{sign}]{offset // 60:02}:{offset % 60:02}"
            zone = f"(?:[zZ]|{zone})" if offset == 0 else zone
            moments.append(rf"{shown // 60:02}:{shown % 60:02}:60(?:[.][0-9]+)?{zone}")
    return f"(?:{'|'.join(moments)})"


_HEX: Final = "[0-9a-fA-F]{1,4}"
_OCTET: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LAST: Final = rf"(?:{_HEX}:{_HEX}|{_OCTET}(?:[.]{_OCTET}){{3}})"


def _ipv6() -> str:
    """Return the expression of RFC 3986's ``IPv6address``, not anchored."""
    forms = [f"(?:{_HEX}:){{6}}{_LAST}", f"::(?:{_HEX}:){{5}}{_LAST}"]
    for before in range(5):
        head = f"(?:(?:{_HEX}:){{0,{before}}}{_HEX})?::"
        forms.append(f"{head}(?:{_HEX}:){{{4 - before}}}{_LAST}")
    forms += [
        f"(?:(?:{_HEX}:){{0,{before}}}{_HEX})?::{end}" for before, end in ((5, _HEX), (6, ""))
    ]
    return f"(?:{'|'.join(forms)})"


_IPV6: Final = _ipv6()

_UNRESERVED: Final = r"A-Za-z0-9._~\-"
_SUB_DELIMS: Final = "!$&'()*+,;="
_ESCAPED: Final = "%[0-9A-Fa-f]{2}"
_BEYOND_ASCII: Final = "".join(
    f"{chr(first)}-{chr(last)}"
    for first, last in (
        *((0xA0, 0xD7FF), (0xF900, 0xFDCF), (0xFDF0, 0xFFEF)),
        *((plane << 16, (plane << 16) + 0xFFFD) for plane in range(1, 14)),
        (0xE1000, 0xEFFFD),
    )
)
"""``ucschar`` of RFC 3987, for a character class."""


def _reference(beyond: str, *, relative: bool) -> str:
    """Return the expression of a URI (RFC 3986) or IRI (RFC 3987).

    Args:
        beyond: characters beyond ASCII that it may contain, for a character class.
        relative: whether it may be relative.
    """
    letters = f"{_UNRESERVED}{_SUB_DELIMS}{beyond}"
    user, name = (f"(?:[{letters}{more}]|{_ESCAPED})*" for more in (":", ""))
    literal = rf"\[(?:{_IPV6}|[vV][0-9A-Fa-f]+[.][{_UNRESERVED}{_SUB_DELIMS}:]+)\]"
    authority = f"(?:{user}@)?(?:{literal}|{name})(?::[0-9]*)?"
    segment = f"(?:[{letters}:@]|{_ESCAPED})"
    rest = f"(?:/{segment}*)*"
    first = f"(?:[{letters}@]|{_ESCAPED})+"  # of a relative path: a colon would end a scheme
    tail = f"(?:[{letters}:@/?]|{_ESCAPED})*"
    scheme = "[A-Za-z][A-Za-z0-9+.-]*:"
    absolute = f"{scheme}(?://{authority}{rest}|/(?:{segment}+{rest})?|{segment}+{rest}|)"
    near = f"(?://{authority}{rest}|/(?:{segment}+{rest})?|{first}{rest}|)"
    whole = f"(?:{absolute}|{near})" if relative else absolute
    return rf"^{whole}(?:\?{tail})?(?:#{tail})?$"


_POINTER: Final = "(?:/(?:[^~/]|~[01])*)*"
_VARIABLE: Final = (
    rf"(?:[A-Za-z0-9_]|{_ESCAPED})(?:[.]?(?:[A-Za-z0-9_]|{_ESCAPED}))*(?::[1-9][0-9]{{0,3}}|[*])?"
)
_TEMPLATE: Final = (
    r"^(?:[\x21\x23-\x24\x26-\x3b\x3d\x3f-\x5b\x5d\x5f\x61-\x7a\x7e" + _BEYOND_ASCII + "]"
    rf"|{_ESCAPED}|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*$"
)
_UUID: Final = (
    "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-%s[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
)

_LETTER: Final = "[a-zA-Z0-9]"
_LDH: Final = "[a-zA-Z0-9-]"
_HOST_LABEL: Final = (
    f"{_LETTER}(?:{_LETTER}|{_LDH}{_LETTER}|{_LDH}{{2}}{_LETTER}"
    f"|{_LDH}(?:{_LETTER}{_LDH}|-{_LETTER}){_LDH}{{0,58}}{_LETTER})?"
)
"""A label of at most 63 characters without hyphens in the third and fourth place: those are reserved,
and what may follow ``xn--`` is not regular (RFC 5890)."""

_ATOM: Final = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]+"
_QUOTED: Final = r'"(?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\[\x20-\x7e]){0,31}"'
_LABEL: Final = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,28}[a-zA-Z0-9])?"
_DOMAIN: Final = (
    rf"(?:{_LABEL}(?:[.]{_LABEL}){{0,5}}|\[(?:{_OCTET}(?:[.]{_OCTET}){{3}}|IPv6:{_IPV6})\])"
)

PATTERNS: Final[dict[str, tuple[str, ...]]] = {
    "date": (rf"^{_DAY}$",),
    "time": (rf"^(?:{_SECONDS}|{_leap_seconds('+-')}$)",),
    # RFC 3339: leap seconds are at the end of June or December, UTC; in eastern time zones, a day later.
    "date-time": (
        rf"^(?:{_DAY}[tT]{_SECONDS}|[0-9]{{4}}-(?:06-30|12-31)[tT]{_leap_seconds('-')}$)",
    ),
    # RFC 5321: 64 octets of a local part, which may be quoted, and a domain of limited length.
    "email": (
        rf"^(?:{_ATOM}(?:[.]{_ATOM})*|{_QUOTED})@{_DOMAIN}$",
        r'^(?:"|[^"@]{1,64}@)',
    ),
    "hostname": (rf"^{_HOST_LABEL}(?:[.]{_HOST_LABEL})*$", "^.{1,253}$"),
    "ipv6": (f"^{_IPV6}$",),
    "json-pointer": (f"^{_POINTER}$",),
    "relative-json-pointer": (f"^(?:0|[1-9][0-9]*)(?:[+-][1-9][0-9]*)?(?:#|{_POINTER})$",),
    "uri-reference": (_reference("", relative=True),),
    "iri": (_reference(_BEYOND_ASCII, relative=False),),
    "iri-reference": (_reference(_BEYOND_ASCII, relative=True),),
    "uri-template": (_TEMPLATE,),
    # pydantic's
    **{f"uuid{version}": (f"^{_UUID % version}$",) for version in (1, 3, 4, 5, 6, 7, 8)},
}
"""Format -> regular expressions, all of which its texts must match."""

REPLACED: Final = frozenset(PATTERNS) - {"date", "time", "date-time"}
"""Formats fully defined by their expressions; other expressions add to llguidance's rules."""

ANY_TEXT: Final = frozenset(
    (
        "password",
        "binary",
        "path",
        "file-path",
        "directory-path",
        "int32",
        "int64",
        "float",
        "double",
    )
)
"""Formats of OpenAPI and pydantic that allow every string: they are hints, or apply to numbers."""
