"""The layout of the tests: no test module imports another, and every folder has a kind."""

import ast
from pathlib import Path

from tests import kinds

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
