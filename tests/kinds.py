"""The kind of test in each folder: ``pytest -m unit`` and the like run one kind."""

from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent

KINDS: Final[dict[str, frozenset[str]]] = {
    "unit": frozenset(
        {"fuzz", "gateway", "graph", "plan", "quant", "redact", "speculation", "text", "tools"}
        | {"tts"}
    ),
    "model": frozenset(
        {"adapters", "calibration", "embedding", "engine", "formats", "grammar", "models", "native"}
        | {"ops", "quality", "runtimes", "speech", "train"}
        | {"test_llm.py", "test_llm_evaluate.py", "test_llm_first_day.py", "test_llm_tools.py"}
        | {"test_real_models.py", "test_real_voice.py"}
    ),
    "process": frozenset(
        {
            "bench",
            "cache",
            "calls",
            "cli",
            "clients",
            "cluster",
            "traffic",
            "doctor",
            "lab",
            "tune",
            "observe",
            "recipes",
            "server",
            "service",
        }
        | {"test_distribution.py", "test_examples.py", "test_install_size.py", "test_warm.py"}
    ),
    "browser": frozenset({"page"}),
}
"""A kind's folders, and its files outside of folders; other files outside of folders are unit tests.

``unit`` has neither models nor processes, ``model`` runs models in the test's own process,
``process`` starts others (servers, commands), and ``browser`` needs a Chromium.
"""


def of(path: Path) -> str:
    """Return the kind of the test file at ``path``; test_layout.py checks that every folder has one."""
    place = path.relative_to(TESTS).parts[0]
    return next((kind for kind, places in KINDS.items() if place in places), "unit")
