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
    """Return the expression of RFC 3986's ``IPv6address``."""
    forms = [f"(?:{_HEX}:){{6}}{_LAST}", f"::(?:{_HEX}:){{5}}{_LAST}"]
    for before in range(5):
        head = f"(?:(?:{_HEX}:){{0,{before}}}{_HEX})?::"
        forms.append(f"{head}(?:{_HEX}:){{{4 - before}}}{_LAST}")
    forms += [
        f"(?:(?:{_HEX}:){{0,{before}}}{_HEX})?::{end}" for before, end in ((5, _HEX), (6, ""))
    ]
    return f"^(?:{'|'.join(forms)})$"


_ATOM: Final = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]+"
_QUOTED: Final = r'"(?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\[\x20-\x7e]){0,31}"'
_LABEL: Final = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,28}[a-zA-Z0-9])?"
_DOMAIN: Final = rf"(?:{_LABEL}(?:[.]{_LABEL}){{0,5}}|\[{_OCTET}(?:[.]{_OCTET}){{3}}\])"

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
    "hostname": (r"^.{1,253}$",),
    "ipv6": (_ipv6(),),
}
"""Format -> regular expressions, all of which its texts must match."""

REPLACED: Final = frozenset(("email", "ipv6"))
"""Formats fully defined by their expressions; other expressions add to llguidance's rules."""
