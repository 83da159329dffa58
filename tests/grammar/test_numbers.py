"""Numbers in schemas are kept exactly or refused by name, and numbers in answers terminate."""

import json
import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer

from galley.errors import RequestError
from galley.grammar.digits import EXPONENT, INTEGER, SIGNIFICANT, DigitRun
from galley.grammar.numbers import MOST
from tests.grammar.accepting import accepts

LARGE = st.one_of(
    st.integers(-(2**65), 2**65),
    st.integers(-3, 3).map(lambda off: 2**53 + off),
    st.integers(-3, 3).map(lambda off: off - 2**53),
    st.sampled_from([2**60, -(2**60), 2**62, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64, 10**30]),
    st.integers(40, 62).map(lambda power: 2**power),
)
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def within(keyword: str, bound: int, value: int) -> bool:
    match keyword:
        case "minimum":
            return value >= bound
        case "maximum":
            return value <= bound
        case "exclusiveMinimum":
            return value > bound
        case _:
            return value < bound


@settings(max_examples=60, deadline=None, derandomize=True)
@given(keyword=st.sampled_from(BOUNDS), bound=LARGE)
@example(keyword="minimum", bound=-(2**63))
@example(keyword="minimum", bound=2**53 + 1)
@example(keyword="exclusiveMinimum", bound=2**53)
def test_a_bound_of_integers_holds_exactly_or_is_refused(
    keyword: str, bound: int, vocabulary: LLTokenizer
) -> None:
    values = [value for value in range(bound - 2, bound + 3) if abs(value) <= MOST]
    values += [0, MOST, -MOST]
    try:
        got = accepts({"type": "integer", keyword: bound}, vocabulary, *map(str, values))
    except RequestError as error:
        assert f"'{keyword}' {bound} cannot be represented" in str(error)  # noqa: PT017 - or is kept
        assert abs(bound) >= 2**53
        return
    assert got == [within(keyword, bound, value) for value in values]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(value=st.one_of(LARGE, st.floats(allow_nan=False, allow_infinity=False)))
@example(value=2**53 + 1)
@example(value=0.09121595383022585)
@example(value=-(2**63))
@example(value=123456789.123456789)
def test_a_constant_is_written_exactly_or_refused(value: float, vocabulary: LLTokenizer) -> None:
    for keyword, schema in (
        ("const", {"const": {"a": [value]}}),
        ("enum", {"enum": [[value], "x"]}),
        ("enum", {"properties": {"b": {"enum": [value]}}}),
    ):
        shown = json.dumps(schema.get("const", {"b": value} if "properties" in schema else [value]))
        try:
            accepts(schema, vocabulary)
        except RequestError as error:
            assert f"'{keyword}' {value!r}"[:40] in str(error)  # noqa: PT017 - or is kept
            continue
        if isinstance(value, int):
            assert accepts(schema, vocabulary, shown.replace(" ", "")) == [True]
            other = shown.replace(str(value), str(value + 1))
            assert accepts(schema, vocabulary, other.replace(" ", "")) == [False]


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"const": 2**53 + 1}, "'const' 9007199254740993"),
        ({"enum": ["x", {"a": [2**64]}]}, "'enum' 18446744073709551616"),
        ({"const": 0.09121595383022585}, "'const' 0.09121595383022585"),
        ({"properties": {"a": {"type": "integer", "minimum": 2**53 + 1}}}, "/properties/a"),
        ({"type": "integer", "minimum": 2**64}, "'minimum' 18446744073709551616"),
        ({"type": "number", "maximum": 2**60}, "'maximum' 1152921504606846976"),
        ({"type": "number", "minimum": -1e300}, "'minimum' -1e\\+300"),
        ({"exclusiveMaximum": 2**63}, "'exclusiveMaximum' 9223372036854775808"),
    ],
)
def test_a_number_that_cannot_be_kept_is_named(
    schema: dict[str, Any], named: str, vocabulary: LLTokenizer
) -> None:
    with pytest.raises(RequestError, match=named):
        accepts(schema, vocabulary)


@pytest.mark.parametrize(
    ("low", "high"), [(-(2**63), 2**63 - 1), (0, 2**64 - 1), (-(2**31), 2**31 - 1)]
)
def test_bounds_of_programming_languages_are_taken(
    low: int, high: int, vocabulary: LLTokenizer
) -> None:
    schema = {"type": ["integer", "null"], "minimum": low, "maximum": high}
    inside, least = min(high, MOST), max(low, -MOST)
    texts = [str(inside), str(least), "7", "null", str(high + 1), str(low - 1)]
    assert accepts(schema, vocabulary, *texts) == [True] * 4 + [False] * 2


@pytest.mark.parametrize(
    ("text", "room"),
    [
        ("12", INTEGER - 2),
        ("-12", INTEGER - 2),
        ("[1,12", INTEGER - 2),
        ("0.", SIGNIFICANT),
        ("0.25", SIGNIFICANT - 2),
        ("123.25", SIGNIFICANT - 5),
        ("1234567890123456789.", 1),
        ("1e", EXPONENT),
        ("1E-", EXPONENT),
        ("1.5e+30", EXPONENT - 2),
        ("1e5, 7", INTEGER - 1),
    ],
)
def test_how_many_more_digits_a_number_may_have(text: str, room: int) -> None:
    data = text.encode()
    for cut in range(len(data)):
        run = DigitRun().after(data[:cut]).after(data[cut:])
        assert run.most - run.digits == room, cut


def test_so_many_digits_tell_any_number() -> None:
    assert len(str(2**63 - 1)) == INTEGER
    assert float(f"{math.pi:.{SIGNIFICANT}g}") == math.pi
