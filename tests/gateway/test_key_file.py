"""The key file: valid content, and the errors for the rest."""

import hashlib
import os
from pathlib import Path

import pytest

from galley.errors import SettingsError
from galley.gateway.key_file import Tenant, digest, read_key_file


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


FIRST = f"  - name: first\n    key_sha256: '{hashed('one')}'\n"


def read(tmp_path: Path, text: str) -> dict[bytes, Tenant]:
    path = tmp_path / "keys"
    path.write_text(text, encoding="utf-8")
    return read_key_file(str(path))


def test_tenants_with_every_field(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        "# who may\n"
        "tenants:\n"
        + FIRST
        + "  - name: second\n"
        + f"    key_sha256: ['{hashed('two')}', '{hashed('new')}']\n"
        + "    weight: 2.5\n    priority: -3\n    requests_per_minute: 60\n"
        + "    tokens_per_minute: 1000\n    concurrency: 4\n    max_context: 512\n    admin: true\n",
    )
    second = Tenant(
        name="second",
        weight=2.5,
        priority=-3,
        requests_per_minute=60,
        tokens_per_minute=1000,
        concurrency=4,
        max_context=512,
        admin=True,
    )
    assert table == {
        digest("one"): Tenant(name="first"),
        digest("two"): second,
        digest("new"): second,
    }


def test_plain_keys_one_a_line(tmp_path: Path) -> None:
    keys = ["sk-one-key", "c2stdHdv/+a1~_.-==", "12345678"]
    table = read(tmp_path, f"\ufeff{keys[0]}\n\n {keys[1]} \r\n{keys[2]}")
    assert table.keys() == {digest(key) for key in keys}
    names = {tenant.name for tenant in table.values()}
    assert names == {f"key-{hashed(key)[:8]}" for key in keys}


def test_a_list_of_tenants_needs_no_word_before_it(tmp_path: Path) -> None:
    assert read(tmp_path, FIRST) == read(tmp_path, f"tenants:\n{FIRST}")
    assert read(tmp_path, "# who may\n---\n" + FIRST) == read(tmp_path, FIRST)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("sk-one-key\nsk two secret\n", 2),
        ("sk-one-key\nsecret:key-of-two\n", 2),
        ("sk-one-key\n\nsecret\n", 3),
        ("GALLEY_API_KEY=secret-key\n", 1),
        ("sk-secret-key,\n", 1),
        ("'sk-secret-key'\n", 1),
        ("# secret\nsk-one-key\n", 1),
        ("name: secret\nkey_sha256: secret\n", 1),
        ("-----BEGIN PRIVATE KEY-----\nc2VjcmV0c2VjcmV0\n-----END PRIVATE KEY-----\n", 1),
        ("sk-\x1b[31msecret\n", 1),
        ("schlüssel-secret\n", 1),
    ],
)
def test_what_is_no_key_file_is_refused(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(SettingsError) as error:
        read(tmp_path, text)
    assert f"keys, line {line}: this is neither an API key" in str(error.value)
    assert "secret" not in str(error.value).replace(str(tmp_path), "")


@pytest.mark.parametrize(
    "text",
    ["keys:\n  - secret-key\n", '{"keys": ["secret-key"]}', "[secret-key]", "- secret-key\n"],
)
def test_yaml_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match="must") as error:
        read(tmp_path, text)
    assert "secret-key" not in str(error.value)


def test_what_is_no_file_of_a_sane_size_is_refused_at_once(tmp_path: Path) -> None:
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    large.write_bytes(b"sk-a-long-key\n" * 400_000)
    for path, says in (
        (pipe, "is not a regular file"),
        (tmp_path, "Is a directory"),
        (Path("/dev/zero"), "is not a regular file"),
        (large, "more than"),
        (tmp_path / "missing", "cannot read"),
    ):
        with pytest.raises(SettingsError, match=says):
            read_key_file(str(path))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("    weight: 0\n", "line 2: tenant 'first': weight"),
        ("    weight: -1\n", "weight"),
        ("    weight: .nan\n", "weight"),
        ("    weight: .inf\n", "weight"),
        ("    weight: secret-value\n", "weight"),
        ("    priority: 101\n", "priority"),
        ("    requests_per_minute: 0\n", "requests_per_minute"),
        ("    tokens_per_minute: -5\n", "tokens_per_minute"),
        ("    concurrency: 1.5\n", "concurrency"),
        ("    max_context: yes\n", "max_context"),
        ("    admin: 1\n", "admin"),
        ("    wieght: 2\n", "unknown field `wieght`; known: key_sha256, name, weight"),
        ("    key: secret-value\n", "unknown field `key`"),
        ("    weight: 1\n    weight: 2\n", "line 5: weight occurs twice"),
        (FIRST, "line 4: tenant 'first': the name occurs twice"),
        (
            FIRST.replace("first", "other"),
            "line 4: tenant 'other': its key is also used by 'first'",
        ),
        ("  - name: other\n", "tenant 'other': key_sha256 must be"),
        ("  - name: other\n    key_sha256: secret-value\n", "key_sha256 must be"),
        ("  - name: other\n    key_sha256: []\n", "key_sha256 must be"),
        (f"  - name: other\n    key_sha256: {hashed('')}\n", "key_sha256 must be"),
        (f"  - key_sha256: {hashed('x')}\n", "not a valid tenant name"),
        (f"  - name: 'a b'\n    key_sha256: {hashed('x')}\n", "'a b' is not a valid tenant name"),
        ("  - secret-value\n", "line 4: a tenant must be a mapping"),
        ("  - name: 'secret-value\n", "not valid YAML"),
        ("  - " + "[" * 20_000, "not valid YAML"),
        ("others: []\n", "nothing else"),
    ],
)
def test_errors_name_the_line_and_the_tenant(tmp_path: Path, lines: str, says: str) -> None:
    with pytest.raises(SettingsError) as error:
        read(tmp_path, "tenants:\n" + FIRST + lines)
    assert says in str(error.value)
    assert str(tmp_path / "keys") in str(error.value)
    assert "secret-value" not in str(error.value)


@pytest.mark.parametrize("text", ["tenants: []\n", "tenants: 5\n", "tenants:\n"])
def test_a_file_without_tenants_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match="api_key_file"):
        read(tmp_path, text)
