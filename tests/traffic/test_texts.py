"""Texts of a record are readable with the key alone, and only at their own line."""

import json
import secrets
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from galley.errors import SettingsError
from galley.traffic.texts import TextCipher, Texts
from tests.cli.command import galley
from tests.server.serving import Server

TEXTS = Texts([5, 6, 7], [[8, 9], [10]])


def key_in(folder: Path, name: str = "key") -> Path:
    file = folder / name
    file.write_text(secrets.token_hex(32) + "\n")
    return file


def test_the_key_opens_what_it_closed(tmp_path: Path) -> None:
    cipher = TextCipher(key_in(tmp_path), "record_texts")
    sealed = [cipher.encrypt(TEXTS, "line 1") for _ in range(2)]
    assert sealed[0] != sealed[1]
    assert [cipher.decrypt(one, "line 1") for one in sealed] == [TEXTS, TEXTS]


def test_another_key_or_line_or_text_is_an_error(tmp_path: Path) -> None:
    cipher = TextCipher(key_in(tmp_path), "record_texts")
    other = TextCipher(key_in(tmp_path, "other"), "--texts")
    sealed = cipher.encrypt(TEXTS, "line 1")
    changed = ("B" if sealed[30] == "A" else "A").join((sealed[:30], sealed[31:]))
    with pytest.raises(SettingsError, match="--texts: the texts of the line of line 1"):
        other.decrypt(sealed, "line 1")
    for text, line in ((sealed, "line 2"), (changed, "line 1"), ("", "line 1"), ("é", "line 1")):
        with pytest.raises(SettingsError, match="cannot be decrypted"):
            cipher.decrypt(text, line)


@pytest.mark.parametrize("content", ["", "abc", "zz" * 32, "00" * 31, "00" * 33])
def test_a_file_without_a_key_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    with pytest.raises(SettingsError, match=r"record_texts: .*64 hexadecimal digits"):
        TextCipher(file, "record_texts")
    with pytest.raises(SettingsError, match=r"No such file.*openssl rand"):
        TextCipher(tmp_path / "none", "record_texts")


@pytest.mark.xdist_group("traffic")
def test_recorded_prompts_are_sent_again(tmp_path: Path) -> None:
    """Another server's prefix cache knows the prompt after the replay, so it was the same."""
    key, folder = key_in(tmp_path), tmp_path / "record"
    settings: dict[str, Any] = {"threads": 1, "kv_cache_tokens": 4096}
    prompt = list(range(100, 200))
    body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    with Server(
        "galley-demo", tmp_path / "log", record=folder, record_texts=key, **settings
    ) as server:
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        assert server.stop() == 0
    [file] = folder.glob("trace-*.jsonl")
    [line] = file.read_text().splitlines()
    assert answer["choices"][0]["text"] not in line
    assert "100,101" not in line
    with Server("galley-demo", tmp_path / "log", **settings) as server:
        done = galley("replay", file, server.url, "--texts", key, "--against", server.url)
        assert done.returncode == 0, done.stderr
        assert "same likeliest token at 100.00% of 3 tokens of 1 recorded answers" in done.stdout
        again = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
        assert again["choices"][0]["text"] == answer["choices"][0]["text"]
        wrong = galley("replay", file, server.url, "--texts", key_in(tmp_path, "other"))
        assert (wrong.returncode, "the key is not that of the record" in wrong.stderr) == (2, True)
        plain = {k: v for k, v in json.loads(line).items() if k != "texts"}
        bare = tmp_path / "bare.jsonl"
        bare.write_bytes(msgspec.json.encode(plain))
        assert "has no texts" in galley("replay", bare, server.url, "--texts", key).stderr
