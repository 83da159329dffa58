"""Installs each peer in its own virtual environment and converts the checkpoint for it."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.peers.checkpoint import write_shape
from benchmarks.peers.protocol import Peer

ROOT: Final = Path(__file__).parents[2]
_REQUIREMENTS: Final = Path(__file__).parent / "requirements"


class PeerFailed(Exception):
    """A peer failed to install, convert, load or answer. The message says where its log is."""


def python_of(peer: Peer, home: Path) -> Path:
    """Return the peer's Python; Galley uses the runner's."""
    return (
        Path(sys.executable)
        if peer.name.startswith("galley")
        else home / peer.venv_name / "venv/bin/python"
    )


def log_file(peer: Peer, home: Path) -> Path:
    """Return the path of the log of the peer's tools and process."""
    (home / "log").mkdir(parents=True, exist_ok=True)
    return home / "log" / f"{peer.name}.txt"


def install(peer: Peer, home: Path) -> None:
    """Install a peer, once for each state of its requirements files.

    Raises:
        PeerFailed: pip failed.
    """
    files = [
        (file, options)
        for file, options in (
            (_REQUIREMENTS / f"{peer.venv_name}.txt", ()),
            (_REQUIREMENTS / f"{peer.venv_name}.no-deps.txt", ("--no-deps",)),
        )
        if file.exists()
    ]
    if not files:
        return
    digest = hashlib.sha256(b"".join(file.read_bytes() for file, _ in files)).hexdigest()
    stamp = home / peer.venv_name / "installed"
    if stamp.exists() and stamp.read_text() == digest:
        return
    python = python_of(peer, home)
    _run(peer, home, [sys.executable, "-m", "venv", home / peer.venv_name / "venv"])
    for file, options in files:
        _run(peer, home, [python, "-m", "pip", "install", *options, "-r", file])
    if peer.unwanted:
        _run(peer, home, [python, "-m", "pip", "uninstall", "--yes", *peer.unwanted])
    stamp.write_text(digest)


def make_checkpoint(shape: str, home: Path) -> Path:
    """Return the random checkpoint of a shape, written once."""
    folder = home / "checkpoints" / shape
    if not (folder / "config.json").exists():
        write_shape(folder, shape)
    return folder


def converted(peer: Peer, variant: str, checkpoint: Path, home: Path) -> Path:
    """Return what the peer loads: the checkpoint, or its conversion by the peer's own tools, made once.

    Raises:
        PeerFailed: the conversion failed.
    """
    if peer.convert is None:
        return checkpoint
    folder = home / "converted" / checkpoint.name / peer.name
    target = folder / (variant + peer.suffix)
    if not target.exists():
        # The next run must not take a partial conversion for a complete one.
        half = folder / f"{variant}.half{peer.suffix}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(half) if half.is_dir() else half.unlink(missing_ok=True)
        module = f"benchmarks.peers.{peer.name}"
        command: list[str | Path] = [python_of(peer, home), "-m", module, "convert", variant]
        _run(peer, home, [*command, checkpoint, "--target", half])
        half.rename(target)
    return target


def _run(peer: Peer, home: Path, command: list[str | Path]) -> None:
    log = log_file(peer, home)
    with log.open("ab") as output:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(peer.pip_environment),
            check=False,
        )
    if done.returncode:
        raise PeerFailed(f"{' '.join(map(str, command))} failed; see {log}")
