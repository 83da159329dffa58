"""Implement ``make clients``: record the requests of the newest clients, and replay them against Galley.

Recordings are ``tests/clients/recorded/NAME.json``: client, version and requests. Long texts are cut, and
anything specific to this machine or run is replaced. Tests that fail afterwards show what breaks with these
versions.
"""

import argparse
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from scripts.client_drivers import CLIENTS, LIBRARIES, Client, Place
from scripts.recording_server import RecordingServer

RECORDED: Final = Path(__file__).parents[1] / "tests/clients/recorded"
LONGEST: Final = 80
"""Characters of a text in a recording: clients' prompts are their own, and only the form matters."""

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LONG_HEX: Final = re.compile(r"\b[0-9a-f]{32,}\b")
_KEPT: Final = re.compile(r"x-anthropic-billing-header:.*")
"""Lines that are kept whole, because a setting recognizes them."""


def main() -> int:
    """Return how many clients could not be recorded, or the exit status of the tests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("build/clients"))
    parser.add_argument("--only", nargs="*", choices=sorted(CLIENTS), default=sorted(CLIENTS))
    parser.add_argument(
        "--installed", action="store_true", help="use the clients already in the folder"
    )
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if not arguments.installed:
        install(folder)
    failed = {}
    for name in arguments.only:
        before, error = _version(RECORDED / f"{name}.json"), ""
        try:
            now = record(name, folder)
        except (OSError, subprocess.SubprocessError, importlib.metadata.PackageNotFoundError) as e:
            failed[name] = now = error = _described(e)
        print(f"{name}: {error or f'{now} (was {before})'}", flush=True)
    tests = [sys.executable, "-m", "pytest", "-n", "0", "-q", "tests/clients/test_recorded.py"]
    return subprocess.run(tests, check=False).returncode or len(failed)


def install(folder: Path) -> None:
    """Install the newest clients into a separate folder."""
    packages = [c.package for c in CLIENTS.values() if c.registry == "npm"]
    prefix = ["--prefix", str(folder / "npm")]
    newest = [f"{package}@latest" for package in packages]
    npm = [shutil.which("npm") or "npm", *prefix, "install", "--no-audit", "--no-fund"]
    subprocess.run([*npm, *newest], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "py")], check=True)
    pip = [str(folder / "py/bin/python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "uv"], check=True)
    # uv, because pip backtracks through many versions to resolve these dependencies.
    uv = [str(folder / "py/bin/uv"), "pip", "install", "--quiet", "--upgrade"]
    subprocess.run([*uv, "--python", str(folder / "py/bin/python"), *LIBRARIES], check=True)


def record(name: str, folder: Path) -> str:
    """Drive one client, save its requests, and return its version."""
    client = CLIENTS[name]
    # A short path that reveals nothing about this machine.
    with tempfile.TemporaryDirectory(prefix="galley-") as made:
        home, project = Path(made) / "home", Path(made) / "project"
        home.mkdir()
        project.mkdir()
        notes = project / "notes.txt"
        notes.write_text("The cat sat on the mat.\n")
        with RecordingServer(notes) as server:
            binaries, python = folder / "npm/node_modules/.bin", folder / "py/bin/python"
            client.run(Place(server.url, home, project, binaries, python))
        requests = [_cleaned(request, made, server.url) for request in server.requests]
    version = _installed(client, folder)
    content = {"client": client.package, "version": version, "requests": requests}
    RECORDED.mkdir(exist_ok=True)
    path = RECORDED / f"{name}.json"
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return version


def _installed(client: Client, folder: Path) -> str:
    if client.registry == "npm":
        package = folder / "npm/node_modules" / client.package / "package.json"
        return str(json.loads(package.read_text())["version"])
    [site] = (folder / "py/lib").glob("python*/site-packages")
    [found] = importlib.metadata.distributions(name=client.package, path=[str(site)])
    return found.version


def _version(path: Path) -> str:
    return str(json.loads(path.read_text())["version"]) if path.exists() else "not recorded"


def _cleaned(value: Any, made: str, url: str, key: str = "") -> Any:
    """Return the value without machine- or run-specific parts, its long texts cut."""
    if isinstance(value, dict):
        return {name: _cleaned(item, made, url, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_cleaned(item, made, url) for item in value]
    if not isinstance(value, str):
        return value
    text = value.replace(made, "/work").replace(url, "http://127.0.0.1:8000")
    text = _UUID.sub("00000000-0000-0000-0000-000000000000", text)
    text = _LONG_HEX.sub(lambda match: "0" * len(match[0]), text)
    if key in ("arguments", "path", "anthropic-beta", "pattern") or _KEPT.fullmatch(text):
        return text
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def _described(error: Exception) -> str:
    said = getattr(error, "stderr", None) or ""
    return f"not recorded: {type(error).__name__}: {str(error)[:200]} {said[-500:]}"


if __name__ == "__main__":
    sys.exit(main())
