"""Run public suites of JSON schemas against Galley's grammars, and count the results.

    python -m scripts.schema_suites JSON-Schema-Test-Suite/tests/draft2020-12
    python -m scripts.schema_suites jsonschemabench/maskbench/data

The folder is a checkout of https://github.com/json-schema-org/JSON-Schema-Test-Suite (a file is a list of
schemas with their tests) or of https://github.com/guidance-ai/jsonschemabench (a file is a schema with its
tests). A schema is either refused or compiled. For a compiled schema, each test has a value that is
valid or invalid, and the grammar accepts or rejects its text. An invalid value that the grammar accepts is
over-accepted.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from llguidance import LLMatcher, LLTokenizer

from galley.errors import RequestError
from galley.grammar.check import LIMITS, check
from galley.types import Grammar

_REASON: Final = 100


class Group(NamedTuple):
    """A schema and its tests: part of the suite, schema, [{data, valid, description}]."""

    part: str
    schema: Any
    tests: list[dict[str, Any]]


class Counts(NamedTuple):
    """The result of one schema: reason for a refusal, and (description, valid, generated) of its tests."""

    refused: str | None
    tests: list[tuple[str, bool, bool]]


def sampled(folder: Path, sample: int, seed: int) -> list[Path]:
    """Return the suite's files in their order; of each split, ``sample`` chosen by ``seed`` (0: all).

    jsonschemabench names files ``SPLIT---NAME.json`` or ``SPLIT_NAME.json``.
    """
    splits: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.json")):
        long, found, _ = path.stem.partition("---")
        splits.setdefault(long if found else path.stem.partition("_")[0], []).append(path)
    source = random.Random(seed)
    chosen = [
        source.sample(paths, min(sample or len(paths), len(paths)))
        for _, paths in sorted(splits.items())
    ]
    return sorted(path for paths in chosen for path in paths)


def groups_of(folder: Path, *, sample: int = 0, seed: int = 0) -> Iterator[Group]:
    """Yield the suite's schemas, in the order of its files; see :func:`sampled`."""
    for path in sampled(folder, sample, seed):
        content = json.loads(path.read_text(encoding="utf-8"))
        part = path.relative_to(folder).parent.as_posix()
        if isinstance(content, dict):
            yield Group(part, content["schema"], content.get("tests", []))
            continue
        for group in content:
            whole = group["schema"]
            schema = whole if isinstance(whole, dict) else {"allOf": [whole]}
            yield Group(part, schema, group["tests"])


def counted(group: Group, vocabulary: LLTokenizer) -> Counts:
    """Compile a schema and try its tests."""
    try:
        compiled = check(Grammar("json_schema", json.dumps(group.schema)), vocabulary, "schema")
    except RequestError as error:
        return Counts(str(error), [])
    tests = [
        (test.get("description", ""), test["valid"], _generated(compiled, vocabulary, test["data"]))
        for test in group.tests
    ]
    return Counts(None, tests)


def _generated(compiled: Grammar, vocabulary: LLTokenizer, value: Any) -> bool:
    matcher = LLMatcher(vocabulary, compiled.source, log_level=0, limits=LIMITS)
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    tokens = vocabulary.tokenize_bytes(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


class Part(NamedTuple):
    """The results of one part of a suite: names of failing tests, and reasons of refusals."""

    schemas: int
    tests: int
    refused: list[str]
    over_accepted: list[str]
    not_generated: list[str]


def run(folder: Path, *, sample: int = 0, seed: int = 0) -> dict[str, Part]:
    """Return the results of a suite by part, "." for the folder itself; see :func:`sampled`."""
    vocabulary = LLTokenizer("byte")
    found: dict[str, list[Counts]] = {}
    for group in groups_of(folder, sample=sample, seed=seed):
        found.setdefault(group.part, []).append(counted(group, vocabulary))
    return {name: _part(all_counts) for name, all_counts in found.items()}


def _part(all_counts: list[Counts]) -> Part:
    tests = [test for counts in all_counts for test in counts.tests]
    return Part(
        len(all_counts),
        len(tests),
        [counts.refused for counts in all_counts if counts.refused is not None],
        [name for name, valid, generated in tests if generated and not valid],
        [name for name, valid, generated in tests if valid and not generated],
    )


def main() -> None:
    """Print the counts of each part of a suite, and with ``--list`` the failing tests."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--list", action="store_true", help="print each failing test")
    arguments = parser.parse_args()
    reasons: Counter[str] = Counter()
    for name, part in run(arguments.folder).items():
        over, never = part.over_accepted, part.not_generated
        reasons.update(reason.partition(" (at ")[0][:_REASON] for reason in part.refused)
        print(
            f"{name}: {part.schemas} schemas, {part.schemas - len(part.refused)} compiled; "
            f"{part.tests} tests, {part.tests - len(over) - len(never)} right, "
            f"{len(over)} over-accepted, {len(never)} valid but not generated"
        )
        for kind, names in (("over-accepted", over), ("not generated", never)):
            for test in names if arguments.list else ():
                print(f"    {kind}: {test}")
    for reason, count in reasons.most_common(20):
        print(f"{count:6} {reason}")


if __name__ == "__main__":
    main()
