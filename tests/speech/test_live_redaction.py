"""Redaction of live text: no piece of a number is given out, in whatever pieces it comes."""

from hypothesis import given
from hypothesis import strategies as st

from galley.redact.spans import Kind
from galley.speech.live_events import Completed, Delta, Failed, Interim, LiveEvent, SpeechStarted
from galley.speech.live_redaction import LiveRedactor
from galley.speech.redaction import redacted
from galley.speech.results import Segment

KINDS: tuple[Kind, ...] = ("card",)
CARD = (
    "my card number is four five three nine one four eight eight zero three four three six four six "
    "seven"
)
LONG = "and after that we talked about the weather for a while " * 10


def turn(number: int, *deltas: str) -> list[LiveEvent]:
    return [
        *(Delta(number, delta) for delta in deltas),
        Completed(number, "".join(deltas), 1.0),
    ]


def texts_of(events: list[LiveEvent]) -> str:
    return " ".join(event.text for event in events if isinstance(event, Delta | Completed))


def test_a_number_over_two_turns_is_removed() -> None:
    words = CARD.split()
    redactor = LiveRedactor(KINDS)
    early = redactor.take(turn(0, " ".join(words[:8])))
    assert early == []
    late = redactor.take(turn(1, " ".join(words[8:])))
    assert late == []
    final = redactor.take(turn(2, LONG)) + redactor.rest()
    assert [event for event in final if isinstance(event, Completed)][:2] == [
        Completed(0, "my card number is [CARD]", 1.0),
        Completed(1, "", 1.0),
    ]
    assert "nine" not in texts_of(final)
    assert redactor.counts == {"card": 1}


def test_text_is_given_out_once_enough_follows() -> None:
    redactor = LiveRedactor(KINDS)
    assert redactor.take(turn(0, "hello", " there")) == []
    assert redactor.take([Delta(1, LONG)]) == [
        Delta(0, "hello"),
        Delta(0, " there"),
        Completed(0, "hello there", 1.0),
    ]
    assert redactor.take([Completed(1, LONG, 2.0)]) == []
    assert redactor.rest() == [Delta(1, LONG), Completed(1, LONG, 2.0)]
    assert redactor.rest() == []


def test_other_events_pass_at_once_and_interim_texts_never() -> None:
    redactor = LiveRedactor(KINDS)
    started = SpeechStarted(0, 10)
    assert redactor.take([started, Interim(0, "four five"), Failed(0, "x")]) == [
        started,
        Failed(0, "x"),
    ]


def test_a_discarded_turn_is_not_given_out() -> None:
    redactor = LiveRedactor(KINDS)
    redactor.take([*turn(0, "hello"), Delta(1, "secret plan")])
    redactor.discard()
    assert redactor.take(turn(2, "bye")) == []
    assert texts_of(redactor.rest()) == "hello hello bye bye"


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.sets(st.integers(0, 30)))
def test_the_text_is_that_of_the_whole_however_it_comes(sizes: list[int], ends: set[int]) -> None:
    """Deltas of any size, in any turns, give what the redaction of the whole text gives."""
    text = f"{LONG} {CARD} thanks {LONG} {CARD} {LONG}".split()
    redactor = LiveRedactor(KINDS)
    given_out: list[LiveEvent] = []
    number, piece, position = 0, 0, 0
    while position < len(text):
        size = sizes[piece % len(sizes)]
        words = " ".join(text[position : position + size])
        given_out += redactor.take([Delta(number, f" {words}")])
        position += size
        piece += 1
        if piece in ends:
            given_out += redactor.take([Completed(number, "", 1.0)])
            number += 1
    given_out += redactor.rest()
    found = " ".join(event.text for event in given_out if isinstance(event, Delta)).split()
    whole = Segment(id=0, start=0, end=1, text=" ".join(text))
    assert found == redacted([whole], KINDS)[0].text.split()
