"""Facts of two questions that must agree before one gets the other's answer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galley.cache.fact_words import (
    ACTIONS,
    DIRECTIONS,
    FUNCTION_WORDS,
    MONTHS,
    NEGATIONS,
    NUMBERS,
    THINGS,
    UNITS,
)
from galley.cache.facts import Facts, difference, same_facts
from tests.thorough import examples


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("Flights from Oslo to Rome", "Flights from Rome to Oslo", "roles"),
        ("Does smoking cause cancer?", "Does cancer cause smoking?", "roles"),
        ("Is Python faster than Ruby?", "Is Ruby faster than Python?", "roles"),
        ("What is 15% of 80?", "What is 80% of 15?", "roles"),
        ("Move it to Monday", "Move it from Monday", "roles"),
        ("Does Jonas report to Boris?", "Tell me if Boris reports to Jonas", "roles"),
        ("Is a Mini desk better than a Pro desk?", "Is a Pro desk better than a Mini desk?", "roles"),
        ("Can I return shoes?", "Can't I return shoes?", "negations"),
        ("Can I return shoes?", "Can I not return shoes?", "negations"),
        ("Is it refundable?", "Is it non-refundable?", "negations"),
        ("Kann ich es ändern?", "Kann ich es nicht ändern?", "negations"),
        ("这个可以退吗", "这个不可以退吗", "negations"),
        ("Is it locked?", "Is it unlocked?", "opposites"),
        ("How do I enable it?", "How do I disable it?", "opposites"),
        ("run 5 km", "run 6 km", "numbers"),
        ("run 5 km", "run 5 miles", "units"),
        ("it costs $5", "it costs 5 EUR", "units"),
        ("return the X200", "return the X300", "numbers"),
        ("open on Monday?", "open on Friday?", "dates"),
        ("from March 3", "from April 3", "numbers"),
        ("at 5:30", "at 3:50", "numbers"),
        ("What is 3 + 5?", "What is 3 * 5?", "signs"),
        ("What is 10-5?", "What is 10+5?", "signs"),
        ("Is it -5 outside?", "Is it 5 outside?", "signs"),
        ("rows with x > 5", "rows with x < 5", "signs"),
        ("What is 2^3?", "What is 3^2?", "roles"),
        ("Is a > b?", "Is b > a?", "roles"),
        ("Is it 10.000 euros?", "Is it 10 euros?", "numbers"),
        ("What is 3 times 5?", "What is 3 plus 5?", "opposites"),
        ("What is Galley?", "What is Kitchen?", "names"),
        ('What does "push" mean?', 'What does "pull" mean?', "names"),
        ("When do you open?", "Where do you open?", "question"),
        ("How do I reset my account?", "How do I unlock my account?", "actions"),
        ("How do I reset my account?", "How do I reset my password?", "things"),
        ("Where do I find the invoice?", "Where do I find my contract?", "things"),
        ("How do I cancel my order?", "How can I return my order?", "actions"),
        ("Is it safe to download the app?", "Is installing the app safe?", "actions"),
        ("Can I cancel and replace it online?", "Can I cancel and repair it online?", "actions"),
    ],
)  # fmt: skip
def test_a_difference_is_found(first: str, second: str, kind: str) -> None:
    assert difference(Facts(first), Facts(second)) == kind
    assert difference(Facts(second), Facts(first)) == kind


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("How do I reset my password?", "What is the way to reset my password?"),
        ("Flights from Oslo to Rome", "flights to Rome from Oslo"),
        ("Difference between X and Y?", "What is the difference between Y and X?"),
        ("5 km", "5km"),
        ("5 km", "five kilometres"),
        ("1,000 users", "1000 users"),
        ("3.50 euros", "\u20ac3.5"),
        ("on 2024-03-05", "on March 5, 2024"),
        ("the 2nd door", "the second door"),
        ("3 x 5 \u2212 2 \u00d7 7", "3 x 5 - 2 * 7"),
        ("The X200 - is it waterproof?", "Is the X200 waterproof?"),
        ("the Aurora kettle", "THE AURORA KETTLE"),
        ("How much is Anna's kettle?", "What does the kettle of Anna cost?"),
        ("May I pay by card?", "Can I pay by card?"),
        ("I don\u2019t know", "I don't know"),
        ("How do I exchange euros?", "How can I convert euros?"),
        ("How do I reset my password?", "I have forgotten my password, what do I do?"),
        ("How do I cancel my account?", "How do I close an account?"),
        ("How do I reset my password?", "How do I reset the password of my account?"),
        ("I want to return and replace it", "I want to return it"),
    ],
)
def test_the_same_in_other_words_has_none(first: str, second: str) -> None:
    assert difference(Facts(first), Facts(second)) is None
    assert difference(Facts(second), Facts(first)) is None


KNOWN = st.sampled_from(
    sorted(
        FUNCTION_WORDS.union(*ACTIONS, *THINGS)
        | DIRECTIONS.keys()
        | NEGATIONS
        | NUMBERS.keys()
        | MONTHS.keys()
        | UNITS.keys()
    )
)
TEXTS = st.text(max_size=200) | st.lists(
    KNOWN | KNOWN.map(str.title) | st.sampled_from(["red", "cars", "7", "X2", "it's", "."]),
    max_size=20,
).map(" ".join)


@given(TEXTS)
@settings(max_examples=examples(300))
def test_any_text_agrees_with_itself(text: str) -> None:
    assert difference(Facts(text), Facts(text)) is None


@given(TEXTS, TEXTS)
@settings(max_examples=examples(300))
def test_the_order_of_two_texts_does_not_matter(first: str, second: str) -> None:
    a, b = Facts(first), Facts(second)
    assert (difference(a, b) is None) == (difference(b, a) is None)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("It takes 3 days", "It takes 3 days, 5 at most", True),
        ("It takes 3 days", "It takes 4 days", False),
        ("We deliver to Oslo.", "Yes, we deliver to Oslo and Rome.", True),
        ("We deliver to Oslo.", "We deliver to Rome.", False),
        ("Ask Anna.", "Ask Boris.", False),
        # Items of lists and headings begin with a capital letter, whatever they are.
        ("You need:\n- Flour\n- Sugar", "You need:\n- Sugar\n- Two eggs", True),
        ("1. Open it.\n2. Turn it.", "# Steps\n1. Turn it.", True),
        ("1. Open it.\n2. Turn it.\n\n1. Wait.\n2. Close it.", "Wait.", True),
        ("24. Dezember", "25. Dezember", False),
        # In German, capital letters do not tell names from other nouns.
        ("Die Zahlung mit Kreditkarte ist möglich.", "Zahlungsarten: Ihre Karte.", True),
        ("Die Lieferung ist in 3 Tagen bei Ihnen.", "Ihr Paket ist in 4 Tagen da.", False),
    ],
)
def test_an_answer_may_say_more_than_the_other_but_nothing_else(
    first: str, second: str, same: bool
) -> None:
    assert same_facts(first, second) == same
    assert same_facts(second, first) == same
