"""Installs a test's engine as a third-party package: Galley finds it by its entry point alone."""

from pathlib import Path
from types import ModuleType


def install(folder: Path, engine: ModuleType, name: str) -> str:
    """Write a package with the engine into ``folder``; return the ``PYTHONPATH`` that includes it."""
    assert engine.__file__ is not None
    module = f"{name}_engine"
    (folder / f"{module}.py").write_text(Path(engine.__file__).read_text())
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}-engine\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(f"[galley.engines]\n{name} = {module}:load\n")
    return str(folder)
