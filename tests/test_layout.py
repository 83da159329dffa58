"""The layout of the tests: what modules import, the kinds of folders, and what stays on one worker."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from tests import kinds
from tests.defects import DEFECTS
from tests.distribution import LONGEST, ROOT, unit_of

TESTS = Path(__file__).parent


def imported(module: Path) -> set[str]:
    """Return the last parts of the names of all modules imported anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.rpartition(".")[2] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").rpartition(".")[2], *(a.name for a in node.names)}
    return found


def test_no_test_module_is_imported() -> None:
    modules = list(TESTS.rglob("*.py"))
    tests = {module.stem for module in modules if module.stem.startswith("test_")}
    assert len(tests) > 50
    leaning = {str(module.relative_to(TESTS)): imported(module) & tests for module in modules}
    assert {name: lent for name, lent in leaning.items() if lent} == {}


def test_every_folder_has_one_kind_and_every_kind_its_places() -> None:
    places = [place for each in kinds.KINDS.values() for place in each]
    assert len(places) == len(set(places))
    assert [place for place in places if not (TESTS / place).exists()] == []
    assert {module.relative_to(TESTS).parts[0] for module in TESTS.glob("*/**/test_*.py")} <= {
        *places
    }


def test_the_longest_units_exist() -> None:
    units = {unit_of(str(module.relative_to(ROOT))) for module in TESTS.rglob("test_*.py")}
    assert [unit for unit in LONGEST if unit not in units] == []


def test_modules_of_a_group_are_one_unit() -> None:
    assert (
        unit_of("tests/page/test_page_http.py") == unit_of("tests/page/test_page_chat.py") == "page"
    )
    assert unit_of("tests/test_layout.py") == "tests/test_layout.py"


def test_a_unit_runs_on_one_worker() -> None:
    """xdist does not fail if it cannot group tests, so this runs it."""
    paths = ["tests/tts/test_pieces.py", "tests/gateway/test_rates.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-v", "-p", "no:cacheprovider", *paths],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if "PYTEST" not in name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    ran = set(re.findall(r"^\[(gw\d)\] .*? PASSED (\S+?)::", done.stdout, re.MULTILINE))
    assert len(ran) == 2
    assert {path for _, path in ran} == set(paths)
    assert {worker for worker, _ in ran} == {"gw0", "gw1"}


def test_a_process_of_a_test_compiles_no_module_again() -> None:
    code = "import sys; print(sys.dont_write_bytecode)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_each_deliberate_defect_has_its_line_and_its_test() -> None:
    for defect in DEFECTS:
        source = (ROOT / "src/galley" / defect.path).read_text(encoding="utf-8")
        assert source.count(defect.line) == 1, defect.name
        module, _, name = defect.found_by.partition("::")
        text = (TESTS / module).read_text(encoding="utf-8")
        assert name.partition("[")[0] in text, defect.name
