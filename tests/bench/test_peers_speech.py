"""The comparison of speech models: its checkpoint runs, its process answers, its ratios are right."""

from pathlib import Path

import pytest
from benchmarks.peers import faster_whisper, galley_speech
from benchmarks.peers.child import Child
from benchmarks.peers.turns import Turns
from benchmarks.peers.whisper_checkpoint import write_whisper


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers") / "whisper-tiny"
    write_whisper(folder, "whisper-tiny")
    return folder


def test_galley_encodes_and_decodes_the_generated_checkpoint(
    checkpoint: Path, tmp_path: Path
) -> None:
    for variant in galley_speech.PEER.variants[8]:
        child = Child(galley_speech.PEER, variant, checkpoint, threads=1, home=tmp_path)
        try:
            assert len(child.ask({"work": "encode", "windows": 2})) == 2
            for beams in (1, 5):
                assert len(child.ask({"work": "decode", "tokens": 5, "beams": beams})) == 1
        finally:
            child.close()


def test_ratios_are_those_of_the_medians() -> None:
    comparison = Turns({"encode": {}, "decode": {}})
    comparison.seconds = {
        "galley_speech int8": {"encode": [1.0, 1.0, 9.0], "decode": []},
        "faster_whisper int8": {"encode": [3.0, 2.0, 1.0], "decode": [1.0]},
    }
    assert comparison.ratio("galley_speech int8", "encode") == 2.0
    assert comparison.ratio("galley_speech int8", "decode") is None
    assert comparison.ratio("galley_speech int8", "encode", among=[]) is None


def test_contenders_compete_at_the_same_bits() -> None:
    assert faster_whisper.PEER.variants
    assert faster_whisper.PEER.variants.keys() <= galley_speech.PEER.variants.keys()
