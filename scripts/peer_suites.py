"""Run public test suites against Galley, at pinned versions, and count what passes.

    python -m scripts.peer_suites [SUITE ...] [--checkouts build/suites] [--sample 200] [--list]

The suites: ``json-schema`` (JSON-Schema-Test-Suite, draft 2020-12), ``maskbench`` (jsonschemabench: of each
split, a sample of its schemas; all of them take an hour),
``open-responses`` and ``h1spec``. Each is checked out into the folder unless it is there, and the programs
that run it (bun, deno) are installed there by npm. The last two run against a ``galley serve`` of the
bundled model behind a chat template with tools. ``docs/operations/conformance.md`` has the results.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from galley.bench.serve.server import started
from galley.demo import MODEL_DIR
from scripts.mask_times import mask_times
from scripts.schema_suites import Part, groups_of, run

_PROGRAMS: Final = {"deno": "2.9.6", "bun": "1.4.5"}
_ZOD: Final = "3.25.76"
"""The only dependency of Open Responses' tests, at the version of its lock file."""

_TEMPLATE: Final = """\
{{- '<|bos|>' -}}
{%- if tools -%}
{{- '<|system|>Call functions as <tool_call>{"name": ..., "arguments": ...}</tool_call>: ' -}}
{{- tools | map('tojson') | join(' ') -}}{{- '<|end|>' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|' + ('user' if message.role == 'tool' else message.role) + '|>' -}}{{- message.content or '' -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' -}}
{%- endfor -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""
"""The bundled model's template, with tools."""


class Counts(NamedTuple):
    """A result: what was counted, how much of it passed, and what did not, each with its reason."""

    what: str
    passed: int
    total: int
    failed: list[str]


class Run(NamedTuple):
    """What a suite is run with.

    Attributes:
        checkout: the suite.
        programs: the folder of programs.
        sample: schemas of each split of a large suite; 0: all.
    """

    checkout: Path
    programs: Path
    sample: int


class Suite(NamedTuple):
    """A suite: repository, commit, and what runs it."""

    repository: str
    commit: str
    counted: Callable[[Run], list[Counts]]


def json_schema(given: Run) -> list[Counts]:
    """Return the counts of draft 2020-12: required, formats, and other optional parts."""
    parts = run(given.checkout / "tests/draft2020-12")
    formats = [part for name, part in parts.items() if name.startswith("optional/format")]
    others = [part for name, part in parts.items() if name == "optional"]
    named = {"required": [parts["."]], "optional formats": formats, "other optional parts": others}
    return [count for name, some in named.items() for count in _of_parts(name, some)]


def maskbench(given: Run) -> list[Counts]:
    """Return the counts of real-world schemas; print the times of masks."""
    folder = given.checkout / "maskbench/data"
    parts = list(run(folder, sample=given.sample).values())
    for name, times in mask_times(groups_of(folder, sample=given.sample)).items():
        print(f"masks of {name}: {times.text()}", flush=True)
    return _of_parts("real-world", parts)


def _of_parts(name: str, parts: list[Part]) -> list[Counts]:
    schemas = sum(part.schemas for part in parts)
    compiled = schemas - sum(len(part.refused) for part in parts)
    over = [f"over-accepted: {test}" for part in parts for test in part.over_accepted]
    never = [f"valid, never generated: {test}" for part in parts for test in part.not_generated]
    tests = sum(part.tests for part in parts)
    refusals = [reason for part in parts for reason in part.refused]
    return [
        Counts(f"{name}, schemas that compile", compiled, schemas, refusals),
        Counts(f"{name}, tests of these", tests - len(over) - len(never), tests, over + never),
    ]


def open_responses(given: Run) -> list[Counts]:
    """Return the counts of Open Responses' compliance tests."""
    checkout, programs = given.checkout, given.programs
    if not (checkout / "node_modules/zod").exists():
        _npm(checkout, f"zod@{_ZOD}", "--no-save", "--ignore-scripts", "--no-package-lock")
    with _serving() as url:
        flags = ["-u", f"{url}/v1", "-k", "none", "-m", "model", "--json"]
        bun = programs / "node_modules/.bin/bun"
        output = _output([bun, "run", "bin/compliance-test.ts", *flags], checkout)
    results, _ = json.JSONDecoder().raw_decode(output)
    failed = [
        f"{one['name']}: {'; '.join(map(str, one['errors']))[:300]}"
        for one in results["results"]
        if one["status"] == "failed"
    ]
    skipped = [
        f"skipped: {one['name']}" for one in results["results"] if one["status"] == "skipped"
    ]
    summary = results["summary"]
    return [Counts("compliance tests", summary["passed"], summary["total"], failed + skipped)]


def h1spec(given: Run) -> list[Counts]:
    """Return the counts of h1spec, whose requests name the host ``example.com``."""
    with _serving("--allowed-host", "example.com") as url:
        place = urlsplit(url)
        deno = given.programs / "node_modules/.bin/deno"
        test = [deno, "run", "--allow-net", "http_test.ts", str(place.hostname), str(place.port)]
        lines = _output(test, given.checkout).splitlines()
    right, wrong = (
        [line.removeprefix(f"{mark} ") for line in lines if line.startswith(mark)]
        for mark in "✅❌"
    )
    return [Counts("requests", len(right), len(right) + len(wrong), wrong)]


@contextmanager
def _serving(*flags: str) -> Iterator[str]:
    """Serve the bundled model behind a template with tools; yield the URL."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        shutil.copytree(MODEL_DIR, folder)
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        config["chat_template"] = _TEMPLATE
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        with started(str(folder), *flags, quiet=True) as (url, _):
            yield url


def _output(command: list[Any], folder: Path) -> str:
    """Return what a suite prints; a failing test makes its exit status 1."""
    env = os.environ | {"NO_COLOR": "1"}
    ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 1) or not ran.stdout:
        raise SystemExit(f"{command[0]} failed in {folder}:\n{ran.stderr}")
    return re.sub(r"\x1b\[[0-9;]*m", "", ran.stdout + ran.stderr)


def _npm(folder: Path, *arguments: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    npm = shutil.which("npm") or "npm"
    subprocess.run([npm, "install", "--silent", "--prefix", folder, *arguments], check=True)


def _checkout(suite: Suite, folder: Path) -> None:
    """Fetch the suite's commit, unless the folder has it."""
    git = [shutil.which("git") or "git", "-C", str(folder)]
    if not folder.exists():
        folder.mkdir(parents=True)
        subprocess.run([*git, "init", "--quiet"], check=True)
        fetch = ["fetch", "--quiet", "--depth", "1", suite.repository, suite.commit]
        subprocess.run([*git, *fetch], check=True)
        subprocess.run([*git, "checkout", "--quiet", "FETCH_HEAD"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    if head.stdout.strip() != suite.commit:
        raise SystemExit(f"{folder} has {head.stdout.strip()}, not {suite.commit}; remove it")


SUITES: Final = {
    "json-schema": Suite(
        "https://github.com/json-schema-org/JSON-Schema-Test-Suite",
        "44401e0c046704b476ec9d2e2fccdaee618f259d",
        json_schema,
    ),
    "maskbench": Suite(
        "https://github.com/guidance-ai/jsonschemabench",
        "ba103c73756198dd9b149ddc7db7867da7a077f6",
        maskbench,
    ),
    "open-responses": Suite(
        "https://github.com/openresponses/openresponses",
        "92c12d96d7b61d6d15e2214daa5e9c6000ab6e1c",
        open_responses,
    ),
    "h1spec": Suite(
        "https://github.com/uNetworking/h1spec",
        "f0a5650a20c575fbea0f7179a3a9cfa50f20ba6e",
        h1spec,
    ),
}


def main() -> None:
    """Run the suites and print their counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--checkouts", type=Path, default=Path("build/suites"))
    parser.add_argument(
        "--sample", type=int, default=200, help="schemas of each split of maskbench; 0: all"
    )
    parser.add_argument("--list", action="store_true", help="print each failure")
    arguments = parser.parse_args()
    if unknown := set(arguments.suites) - set(SUITES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    folder = arguments.checkouts.resolve()
    programs = folder / "programs"
    if {"open-responses", "h1spec"} & set(arguments.suites or SUITES) and not all(
        (programs / "node_modules" / name).exists() for name in _PROGRAMS
    ):
        _npm(programs, *(f"{name}@{version}" for name, version in _PROGRAMS.items()))
    for name in arguments.suites or SUITES:
        suite = SUITES[name]
        _checkout(suite, folder / name)
        for counts in suite.counted(Run(folder / name, programs, arguments.sample)):
            print(f"{name}: {counts.what}: {counts.passed} of {counts.total}", flush=True)
            for failure in counts.failed if arguments.list else ():
                print(f"    {failure}")


if __name__ == "__main__":
    main()
