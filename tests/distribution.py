"""How tests are distributed over workers: a module stays on one, and the longest modules start first.

A module's fixtures, a server most of all, are then made once. Modules that share a fixture of the session
stay together by a mark with one name, ``pytest.mark.xdist_group``. xdist's own ``loadgroup`` does not see
marks under pytest 9.2 (pytest-dev/pytest-xdist#1386), and tests without a mark alternate between workers.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

ROOT: Final = Path(__file__).parents[1]
_GROUP: Final = re.compile(r'xdist_group\("([^"]+)"\)')

LONGEST: Final = (
    "default_server",
    "cli-processes",
    "page",
    "tests/ops/triton/test_triton_compile.py",
    "tests/ops/triton/test_triton_models.py",
    "tests/models/test_against_transformers.py",
    "server_models",
    "server_realtime",
    "server_front_door_answers",
    "tests/native/test_native_executor.py",
    "tests/formats/test_formats_source.py",
    "server_model_files",
    "cluster",
    "text_runtimes",
    "server_operation_overload",
    "tests/native/test_native_whisper.py",
    "tests/cli/test_transcribe.py",
    "tests/native/test_native_attention.py",
    "response_cache",
    "server_text_templates",
    "tests/service/test_core_scheduler.py",
    "server_fault_schedule",
    "server_protocols",
    "real-speech",
    "tests/graph/test_passes.py",
    "tests/ops/triton/test_triton_speech.py",
    "server_operation_faults",
    "server_audio",
    "call_command",
    "observe_receipts",
    "on_request",
    "real-redaction",
    "server_text_sizes",
    "tests/engine/test_state_machine.py",
)
"""The longest units, longest first: one that started last would run while other workers have nothing."""


@cache
def unit_of(module: str) -> str:
    """Return the group that a module's source names, or else the module.

    Args:
        module: the path of a test module, relative to the repository.
    """
    match = _GROUP.search((ROOT / module).read_text(encoding="utf-8"))
    return match[1] if match else module


def next_unit(waiting: Iterable[str]) -> str | None:
    """Return the longest of the waiting units, or None if none of them is long."""
    units = set(waiting)
    return next((unit for unit in LONGEST if unit in units), None)


def import_in_turn(paths: Sequence[Path], worker: int, workers: int) -> None:
    """Import the test modules at paths, beginning where no other worker begins.

    All workers import all modules. Where no compiled modules exist yet, as in a fresh clone, each compiles
    those that it reaches first and finds the others compiled. pytest reports what cannot be imported, when
    it collects the tests.

    Args:
        paths: test modules and folders of them.
        worker: this worker's number, from 0 on.
        workers: how many workers there are.
    """
    modules: list[Path] = []
    for path in paths:
        modules += sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
    first = len(modules) * worker // workers
    for module in modules[first:] + modules[:first]:
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(module.relative_to(ROOT).with_suffix("").parts))


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """xdist's scheduler of units of tests, with the units of this module."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid.partition("::")[0])

    def _assign_work_unit(self, node: WorkerController) -> None:
        longest = next_unit(self.workqueue)
        if longest is not None:
            self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)
