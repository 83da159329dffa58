"""``galley keygen``: the key works with the printed lines."""

from pathlib import Path

import pytest

from galley.gateway.key_file import read_key_file
from galley.gateway.tenants import Tenants
from tests.cli.command import galley


@pytest.mark.parametrize("head", ["", "tenants:\n", "# who may\ntenants:\n"])
def test_the_printed_lines_are_the_keys(tmp_path: Path, head: str) -> None:
    made = galley("keygen", "search")
    assert made.returncode == 0
    key = made.stderr.split()[-1]
    assert key not in made.stdout
    path = tmp_path / "keys"
    path.write_text(head + made.stdout)
    [tenant] = read_key_file(str(path)).values()
    assert tenant.name == "search"
    account = Tenants({}, file=str(path)).identify(key)
    assert account is not None
    assert account.tenant == tenant


def test_lines_that_are_added_are_further_tenants(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    made = [galley("keygen", name) for name in ("search", "news", "maps")]
    path.write_text("".join(one.stdout for one in made))
    tenants = Tenants({}, file=str(path))
    for one, name in zip(made, ("search", "news", "maps"), strict=True):
        account = tenants.identify(one.stderr.split()[-1])
        assert account is not None
        assert account.tenant.name == name
    assert tenants.identify("- name: search") is None


def test_a_name_that_the_file_would_refuse(tmp_path: Path) -> None:
    refused = galley("keygen", "a b")
    assert refused.returncode == 2
    assert "'a b' is not a valid tenant name" in refused.stderr
    assert not refused.stdout
