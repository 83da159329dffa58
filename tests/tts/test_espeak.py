"""Phonemes by espeak-ng's library, compared with its program."""

import ctypes.util
import shutil
import subprocess

import pytest

from galley.errors import SettingsError
from galley.tts.espeak import Espeak

pytestmark = pytest.mark.skipif(
    ctypes.util.find_library("espeak-ng") is None, reason="espeak-ng is not installed"
)
TEXTS = ["hello world", "the year is 19 90", "1st and 23rd", "it costs 1234.5", "naïve café 日本"]


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="the program is not installed")
def test_phonemes_are_those_of_the_program() -> None:
    espeak = Espeak("en-us")
    for text in TEXTS:
        done = subprocess.run(
            ["espeak-ng", "-q", "--ipa", "-v", "en-us", text], capture_output=True, text=True
        )
        said = " ".join(done.stdout.split())
        # The program marks words of other languages, which voices have no sounds for.
        for mark in ("(en)", "(en-us)", "(ja)", "(cmn)", "(fr)"):
            said = said.replace(mark, "")
        assert espeak.phonemes(text) == said
    assert espeak.phonemes("") == espeak.phonemes(" ") == ""
    assert espeak.phonemes("one, two\0three") != ""


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(SettingsError, match="no language 'xx-none'"):
        Espeak("xx-none")
