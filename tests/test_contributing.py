"""Files for contributors' tools are valid: editor, pre-commit, templates, links of the package."""

import re
import subprocess
import tomllib
from pathlib import Path, PurePath

import pytest
import yaml

ROOT = Path(__file__).parents[1]
AS_THEY_ARE = {"data", "peer_files", "recorded", "corpus"}
NO_FINAL_NEWLINE = {"tokenizer.json", "LICENSE"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def tracked_texts() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("no git repository")
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        kept = PurePath(name).parts[0] in ("tests", "fuzz") and AS_THEY_ARE & set(path.parts)
        if path.is_file() and not kept and b"\0" not in path.read_bytes():
            found.append(path)
    return found


def test_texts_are_as_the_editor_writes_them() -> None:
    texts = tracked_texts()
    assert len(texts) > 500
    wrong = []
    for path in texts:
        data = path.read_bytes()
        ends = not data or data.endswith(b"\n") or path.name in NO_FINAL_NEWLINE
        if not ends or b"\r\n" in data or b" \n" in data:
            wrong.append(path.relative_to(ROOT).as_posix())
    assert wrong == []


def test_each_hook_is_a_check_of_make_lint() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert {hook["id"] for hook in hooks} > {"ruff-check", "ruff-format"}
    for hook in hooks:
        assert hook["entry"].startswith(f".venv/bin/{hook['name']}")
        assert f"$(BIN)/{hook['name']}" in makefile


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_an_issue_form_is_what_github_reads(name: str) -> None:
    file = ROOT / f".github/ISSUE_TEMPLATE/{name}.yml"
    form = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert form["name"]
    assert form["description"]
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)
    assert any(field["validations"]["required"] for field in fields if "validations" in field)


def test_all_links_to_the_repository_are_those_of_the_package() -> None:
    home = PROJECT["urls"]["Homepage"]
    assert all(url.startswith(home) for url in PROJECT["urls"].values())
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert site["repo_url"] == home
    config = (ROOT / ".github/ISSUE_TEMPLATE/config.yml").read_text(encoding="utf-8")
    links = yaml.safe_load(config)["contact_links"]
    assert links
    assert all(link["url"].startswith(home) for link in links)


@pytest.mark.parametrize(
    "page",
    [
        "docs/architecture.md",
        "docs/processes.md",
        "docs/engines.md",
        "docs/speech-path.md",
        "docs/packages.md",
        "docs/adding.md",
        "docs/other-systems.md",
        "docs/native.md",
        "docs/native-gpu.md",
        "CONTRIBUTING.md",
    ],
)
def test_files_that_pages_name_exist(page: str) -> None:
    """A name without a folder may be in any; with one, it is relative to the package or the repository."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./]+\.(?:py|cpp|hpp))`", text))
    assert named
    roots = [ROOT / "src/galley", ROOT]
    files = {
        path.name for folder in ("src", "native", "tests") for path in (ROOT / folder).rglob("*")
    }
    missing = [
        name
        for name in named
        if not any((root / name).is_file() for root in roots) and ("/" in name or name not in files)
    ]
    assert missing == []
