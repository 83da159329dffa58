"""Spans of personal data in text: kinds one by one, and recall and precision on a labeled corpus."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galley.redact.find import find_spans
from galley.redact.numbers import is_card, is_iban, luhn
from galley.redact.spans import KINDS, Span, label
from tests.redact.corpus import OTHER_SENTENCES, corpus
from tests.redact.counts import covered_in_all

CALLS = 420
"""Calls of a corpus: more than 1,500 spans."""


def mask(text: str, spans: Sequence[Span]) -> str:
    """Return the text with each span replaced by its label, such as ``[CARD]``."""
    parts, position = [], 0
    for span in spans:
        parts += [text[position : span.start], label(span.kind)]
        position = span.end
    return "".join(parts) + text[position:]


def masked(text: str) -> str:
    return mask(text, find_spans(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Card 4111 1111 1111 1111, code is fine", "Card [CARD], code is fine"),
        ("it is 3782-822463-10005", "it is [CARD]"),
        ("four one one one, double one double one, triple one one, triple one one", "[CARD]"),
        ("4111 1111\nokay, go ahead\n1111 1111 thanks", "[CARD] thanks"),
        ("my card number is 4111 1111 1111 1112", "my card number is [CARD]"),
        ("order number 4111 1111 1111 1112", "order number 4111 1111 1111 1112"),
        ("the security code is one two three", "the security code is [SECURITY_CODE]"),
        ("DE89 3704 0044 0532 0130 00", "[BANK_ACCOUNT]"),
        (
            "g b two nine n w b k six oh one six one three three one nine two six eight one nine",
            "[BANK_ACCOUNT]",
        ),
        ("D as in David, E as in Echo, 89370400440532013000", "[BANK_ACCOUNT]"),
        ("DE89 3704 0044 0532 0130 01", "DE89 3704 0044 0532 0130 01"),
        ("my account number is 12345678", "my account number is [BANK_ACCOUNT]"),
        ("SSN 078-05-1120", "SSN [SSN]"),
        ("it was 666-05-1120", "it was 666-05-1120"),
        ("my social is oh seven eight oh five eleven twenty", "my social is [SSN]"),
        ("call (415) 555-0132 or +44 20 7946 0958", "call [PHONE] or [PHONE]"),
        ("tracking number 415-555-0132", "tracking number 415-555-0132"),
        ("jo.smith+x@example.co.uk", "[EMAIL]"),
        ("it is jo dot smith at example dot com", "it is [EMAIL]"),
        ("meet me at noon at the dot", "meet me at noon at the dot"),
        ("born on the twelfth of April nineteen eighty five", "born on [DATE_OF_BIRTH]"),
        ("delivered on 04/12/1985", "delivered on 04/12/1985"),
        ("I live at 742 Evergreen Terrace, Springfield, IL 62704 now", "I live at [ADDRESS] now"),
        ("twelve hundred maple street, apartment 4 b", "[ADDRESS]"),
        ("P.O. Box 123", "[ADDRESS]"),
        ("seven people on their way home", "seven people on their way home"),
        ("My name is Mary Jones. Thanks, Mary", "My name is [NAME]. Thanks, [NAME]"),
        ("Ask for Mr. O'Neill", "Ask for Mr. [NAME]"),
        ("This is Acme", "This is Acme"),
        ("so I told Jennifer about it", "so I told [NAME] about it"),
        ("Michael said he would", "[NAME] said he would"),
        ("it was Rose Patel, I think", "it was [NAME], I think"),
        ("you know, Wojciech Nowakowski", "you know, [NAME]"),
        ("either Emily, Rose or Mark", "either [NAME], [NAME] or [NAME]"),
        ("Will you mark the rose bush in May", "Will you mark the rose bush in May"),
        ("we flew from Austin, Texas to Charlotte", "we flew from Austin, Texas to Charlotte"),
        ("a flight to Costa Rica and Sri Lanka", "a flight to Costa Rica and Sri Lanka"),
        ("my account at Morgan Bank", "my account at Morgan Bank"),
        ("the Johnson Foundation of New York", "the Johnson Foundation of New York"),
        ("my name is john smith and i called", "my name is [NAME] and i called"),
        ("i talked to maria gonzalez twice", "i talked to [NAME] twice"),
        ("it is spelled S-M-Y-T-H-E, yes", "it is spelled [NAME], yes"),
        ("last name S as in Sam, M like Mike, Y, T for Tom", "last name [NAME]"),
        ("I saw it on the B B C", "I saw it on the B B C"),
        ("Mr. May called", "Mr. [NAME] called"),
        ("ship it to 14 Elm Court, Leeds, LS6 2AB", "ship it to [ADDRESS]"),
        ("Flat 3, Dawson Rise, Leeds, LS6 2AB please", "[ADDRESS] please"),
        ("518 Hayden Drive, Regina, SK S4P 3Y2 now", "[ADDRESS] now"),
        ("Unit 411 Box 4426, DPO AP 33578", "[ADDRESS]"),
        ("its 10th year in Lake Tahoe", "its 10th year in Lake Tahoe"),
        ("four five thirty\ngo ahead\nnine one four eight eight oh three four three six four six seven",
         "[CARD]"),
        ("four five thirty nine one four eight eight oh three four three six four six eight, sir",
         "four five thirty nine one four eight eight oh three four three six four six eight, sir"),
        ("my social is oh seven eight oh five eleven twenty\ngo ahead\nnine", "my social is [SSN]"),
        ("Kowalczyk and Ndiaye were here", "[NAME] and [NAME] were here"),
        ("Not today. Goransson, then", "Not today. [NAME], then"),
        ("Can't say. You've called CEOs", "Can't say. You've called CEOs"),
        ("we pay Gelion plc monthly", "we pay Gelion plc monthly"),
    ],
)  # fmt: skip
def test_each_kind_is_found_and_what_resembles_it_is_not(text: str, expected: str) -> None:
    assert masked(text) == expected


def test_only_the_requested_kinds_are_found() -> None:
    text = "jo@example.org paid with 4111111111111111"
    assert mask(text, find_spans(text, ["card"])) == "jo@example.org paid with [CARD]"


def test_names_that_are_known_are_found_without_an_introduction() -> None:
    assert find_spans("Is Rose there?", known_names={"Rose"})[0][1:] == (3, 7)
    assert not find_spans("Is Rose there?")


def test_check_digits() -> None:
    assert is_card("4111111111111111")
    assert not is_card("4111111111111112")
    assert is_iban("GB29NWBK60161331926819")
    assert not is_iban("GB29NWBK60161331926818")
    assert sum(luhn(f"79927398713{last}") for last in range(10)) == 1


_WORDS = st.sampled_from([
    "at", "dot", ".", ",", "@", "-", "\n", "Mr", "O", "oh", "one", "double", "twenty", "4111", "1111", "12",
    "Main", "Street", "Apt", "born", "May", "is", "my",
])  # fmt: skip


@given(st.text(alphabet="ab 014.,@-\n'MrOo", max_size=200) | st.lists(_WORDS).map(" ".join))
def test_spans_are_in_order_and_do_not_overlap(text: str) -> None:
    spans = find_spans(text)
    edges = [edge for span in spans for edge in span[1:]]
    assert edges == sorted(edges)
    assert all(0 <= span.start < span.end <= len(text) for span in spans)


def test_recall_and_precision_on_the_corpus() -> None:
    values, whole, found, right = covered_in_all(corpus(7, CALLS))
    assert sum(values.values()) >= 1500
    assert set(values) == set(KINDS)
    least = {"card": (0.98, 0.95), "bank_account": (0.98, 0.95)}
    for kind in KINDS:
        recall, precision = least.get(kind, (0.90, 0.85))
        assert whole[kind] / values[kind] >= recall, kind
        assert right[kind] / found[kind] >= precision, kind


def test_checked_kinds_are_found_in_sentences_that_the_rules_were_not_written_for() -> None:
    values, whole, found, right = covered_in_all(corpus(8, CALLS // 2, OTHER_SENTENCES))
    for kind in ("card", "bank_account", "email", "ssn"):
        assert whole[kind] / values[kind] >= 0.97, kind
        assert right[kind] / found[kind] >= 0.95, kind
