"""Training data of the bundled speech model: sentences, voices, line, held-out sets and recordings."""

import random
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from galley.errors import SettingsError
from galley.speech.audio import SAMPLE_RATE, Recording
from recipes.assistant.vocabulary import is_held_out
from recipes.assistant.wordings import HELD_OUT, TRAINING
from recipes.speech import CALL_DIR, DATA_DIR, heldout, line, voices
from recipes.speech.evaluate import TARGET, evaluate, wrong_words
from recipes.speech.line import Line
from recipes.speech.pool import LONGEST, decode, encode, make_shard
from recipes.speech.sentences import SpokenSource, fragment, sentence
from recipes.speech.spoken import letters, spoken

needs_espeak = pytest.mark.skipif(
    shutil.which("espeak-ng") is None, reason="espeak-ng is not installed"
)

SAID = {
    "It was £42.50.": {"forty two pounds fifty", "forty two pounds and fifty pence"},
    "It was $1205.": {"one thousand two hundred and five dollars", "one thousand two hundred five"},
    "It was €60.07.": {"sixty euros seven", "sixty euros and seven cents"},
    "On March 12th.": {"march twelfth"},
    "On the 21st of May.": {"the twenty first of may"},
    "On 30 June.": {"on thirty june"},
    "Account AC-4821907.": {"account a c four eight two one nine"},
    "See case R93137.": {"see case r nine three one three seven"},
    "Call 020 7946 0958.": {"zero two zero seven nine", "oh two oh seven nine"},
    "Call 212-555-0134.": {"two one two five five five zero", "two one two five five five oh"},
}


@pytest.mark.parametrize("written", SAID)
def test_numbers_are_spoken_as_people_speak_them(written: str) -> None:
    heard = {letters(spoken(written, random.Random(seed))) for seed in range(40)}
    for way in SAID[written]:
        assert any(way in text for text in heard)
    assert all(any(way in text for way in SAID[written]) for text in heard)


def test_no_digit_is_left_to_the_voice() -> None:
    source = SpokenSource(random.Random(3), held_out=False)
    for wordings in (TRAINING, HELD_OUT):
        for _ in range(400):
            text = sentence(source, wordings, loose=source.rng.random() < 0.5)
            said = spoken(text, source.rng)
            assert not any(character.isdigit() or character in "£$€" for character in said), text


def test_a_fragment_is_cut_out_of_its_sentence() -> None:
    whole = "My account number is 48213377, and I was charged twice."
    cuts = {fragment(whole, random.Random(seed)) for seed in range(30)}
    assert len(cuts) > 10
    assert all(cut in whole and not cut.endswith((".", ",")) for cut in cuts)


@pytest.mark.parametrize("number", heldout.SETS)
def test_held_out_sets_are_fixed_and_no_part_of_training(number: int) -> None:
    items = heldout.read(number)
    assert len(items) == heldout.ITEMS
    assert items == heldout.make(number)
    assert heldout.violations(items) == []


def test_training_never_draws_a_held_out_sentence_or_voice() -> None:
    said = {text for n in heldout.SETS for item in heldout.read(n) for text, _ in item.sentences}
    source = SpokenSource(random.Random(17), held_out=False)
    assert not any(sentence(source, TRAINING) in said for _ in range(3_000))
    rng = random.Random(17)
    drawn = {voices.draw(rng, held_out=False).variant for _ in range(500)}
    assert drawn == set(voices.TRAINING_VARIANTS)
    assert not drawn & set(voices.HELD_OUT_VARIANTS)


def test_a_violation_would_be_found() -> None:
    item = heldout.read(1)[0]
    source = SpokenSource(random.Random(1), held_out=False)
    trained = msgspec.structs.replace(item, sentences=((sentence(source, TRAINING), ""),))
    assert len(heldout.violations([trained])) == 1
    voice = voices.draw(random.Random(1), held_out=False)
    assert len(heldout.violations([msgspec.structs.replace(item, voice=voice)])) == 1


def power(samples: voices.Samples, low: float, high: float, rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples)) ** 2
    frequencies = np.fft.rfftfreq(len(samples), 1 / rate)
    return float(spectrum[(frequencies >= low) & (frequencies < high)].sum())


@pytest.mark.parametrize("color", line.COLORS)
def test_a_line_is_narrow_and_as_noisy_as_it_says(color: str) -> None:
    speech = np.random.default_rng(1).standard_normal(16_000).astype(np.float32) * 0.05
    narrow = line.band(speech)
    inside = power(narrow, 350, 3300, voices.RATE)
    assert (
        power(narrow, 0, 250, voices.RATE) + power(narrow, 3450, 4001, voices.RATE) < 1e-4 * inside
    )
    loud = Line(snr=10.0, color=color, gain=0.0, before=1.0, after=1.0, warp=1.0, seed=5)
    heard = line.over(narrow, loud)
    assert np.array_equal(heard, line.over(narrow, loud))
    assert len(heard) == 4 * SAMPLE_RATE
    noise, both = heard[: SAMPLE_RATE * 9 // 10], heard[SAMPLE_RATE : 3 * SAMPLE_RATE]
    ratio = (np.mean(both**2) - np.mean(noise**2)) / np.mean(noise**2)
    assert 10 * np.log10(ratio) == pytest.approx(10, abs=1)
    assert power(noise, 4000, 8001, SAMPLE_RATE) < 1e-2 * power(noise, 300, 3400, SAMPLE_RATE)


def test_one_byte_a_sample_is_what_a_telephone_has() -> None:
    samples = np.linspace(-1, 1, 10_001, dtype=np.float32)
    again = decode(encode(samples))
    assert np.abs(again - samples).max() < 0.025
    assert np.abs(again - samples)[np.abs(samples) < 0.05].max() < 2e-3


def test_without_espeak_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SettingsError, match="apt-get install espeak-ng"):
        voices.say("hello", voices.draw(random.Random(1), held_out=False))


@needs_espeak
def test_voices_speak_without_silence_around() -> None:
    voice = voices.Voice("en-gb", "f2", 170, 50)
    speech = voices.say("hello there", voice)
    assert 0.4 < len(speech) / voices.RATE < 1.5
    assert np.abs(speech[:400]).max() > 0.01
    assert np.array_equal(speech, voices.say("hello there", voice))
    with pytest.raises(SettingsError, match="says nothing"):
        voices.say("", voice)
    with pytest.raises(SettingsError, match="cannot speak"):
        voices.say("hello", voices.Voice("xx-nowhere", "f2", 170, 50))


@needs_espeak
def test_a_shard_is_a_function_of_seed_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recipes.speech.pool.SHARD", 6)
    utterances, coded = make_shard(3, 1)
    again, same = make_shard(3, 1)
    assert utterances == again
    assert np.array_equal(coded, same)
    assert make_shard(3, 2)[0] != utterances
    for utterance in utterances:
        assert utterance.seconds <= LONGEST
        assert 0 == utterance.sentences[0].start < utterance.sentences[-1].end == utterance.seconds
    assert sum(utterance.samples for utterance in utterances) == len(coded)


@needs_espeak
def test_held_out_windows_fit_and_perfect_transcripts_have_no_errors() -> None:
    said = [item.text for item in heldout.read(1)]

    def perfect(windows: object) -> list[str]:
        assert max(len(window) for window in windows) <= 8 * SAMPLE_RATE  # type: ignore[attr-defined]
        return [text.upper() for text in said]

    result = evaluate(perfect, sets=[1])
    assert result.wer == 0 < TARGET
    assert result.passed
    with pytest.raises(ValueError, match="gave 150 chunks, got 1"):
        evaluate(lambda windows: ["one"], sets=[1])


def test_a_wrong_digit_makes_a_number_wrong() -> None:
    said = "Account K-48213377, it's £42.50."
    assert wrong_words(said, "account K-48213377 its £42.50") == (0, 6)
    assert wrong_words(said, "Account K-48213378, it's £42.50.") == (1, 6)
    assert wrong_words(said, "") == (6, 6)


def test_bundled_recordings_are_small_and_can_be_read() -> None:
    call = CALL_DIR / f"{heldout.CALL}.opus"
    files = [DATA_DIR / f"{name}.{ending}" for name, ending in heldout.FORMATS.items()]
    assert sum(file.stat().st_size for file in (*files, call)) < 300_000
    for file in (*files, call):
        samples = np.concatenate(list(Recording(file, sample_rate=SAMPLE_RATE)))
        assert 0.5 < len(samples) / SAMPLE_RATE < (30 if file == call else 8)
        assert np.sqrt(np.mean(samples**2)) > 1e-3


@needs_espeak
def test_export_gives_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = {number: heldout.read(number)[:2] for number in heldout.SETS}
    monkeypatch.setattr(heldout, "read", lambda number: items[number])
    lines = heldout.export(tmp_path).read_bytes().splitlines()
    entries = [msgspec.json.decode(entry) for entry in lines]
    assert [entry["text"] for entry in entries] == [i.text for n in items for i in items[n]]
    for entry, item in zip(entries, [i for n in items for i in items[n]], strict=True):
        samples = np.concatenate(list(Recording(tmp_path / entry["audio"])))
        assert len(samples) == pytest.approx(len(heldout.sound(item)), abs=SAMPLE_RATE // 50)


def test_the_call_is_held_out_too() -> None:
    call = msgspec.json.decode((CALL_DIR / "call.json").read_bytes(), type=heldout.Call)
    ticket = msgspec.json.decode(call.ticket)
    assert ticket["account"] in call.text
    assert ticket["name"] in call.text
    assert is_held_out(ticket["account"])
    assert is_held_out(ticket["name"])
