"""Dates, money, times and abbreviations as they are read aloud."""

import pytest

from galley.tts.normalize import normalized

SAID = {
    "Dr. Smith paid $5.20.": "doctor Smith paid 5 dollars and 20 cents.",
    "It costs $1, £1.01 or €0.99.": "It costs 1 dollar, 1 pound and 1 penny or 99 cents.",
    "£1.5 million and $1,234": "1.5 million pounds and 1234 dollars",
    "on 2026-11-26": "on November 26th, 20 26",
    "on 12/25/2009, or Nov. 5, 1905": "on December 25th, 2009, or November 5th, 19 oh 5",
    "the 3rd March 1800 and 22 May": "the March 3rd, 18 hundred and May 22nd",
    "in 1990, from 1914-1918, in the 1990s": "in 19 90, from 19 14 to 19 18, in the 19 90s",
    "1500 people; in 1500 people; 2026-13-40": "1500 people; in 1500 people; 2026 to 13 to 40",
    "at 10:05 a.m., 10:00, 14:30 and 3pm": "at 10 oh 5 A M, 10 o'clock, 14 30 and 3 P M",
    "call (555) 123-4567": "call 5 5 5, 1 2 3, 4 5 6 7",
    "+44 20 7946 0958": "4 4, 2 0, 7 9 4 6, 0 9 5 8",
    "5 km/h, 1 kg, 6 ft, 3 GHz, -5 °C": (
        "5 kilometers per hour, 1 kilogram, 6 feet, 3 gigahertz, minus 5 degrees Celsius"
    ),
    "1/2, 3/4, 7/9 and 5/8": "1 half, 3 quarters, 7/9 and 5 eighths",
    "2*3, 2 × 3, 10 - 3, 3-5": "2 times 3, 2 times 3, 10 minus 3, 3 to 5",  # noqa: RUF001
    "you may 5 times march 10 miles": "you may 5 times march 10 miles",
    "version 1.2.3 at 3.14": "version 1 point 2 point 3 at 3.14",
    "St. Mary, Main St., e.g. No. 5 & #6, etc.": (
        "Saint Mary, Main street, for example number 5 and number 6, et cetera"
    ),
    "write to jo.doe@example.com": "write to jo dot doe at example dot com",
    "see https://example.org/docs": "see example dot org slash docs",
    "# Title\n**bold**, `some_code` and [a link](https://x.y/z)": (
        "Title bold, some code and a link"
    ),
    "a\0b\x1b[31m": "a b [31m",
}


@pytest.mark.parametrize(("text", "said"), SAID.items())
def test_what_is_not_plain_words_is_written_out(text: str, said: str) -> None:
    assert normalized(text, "en-US") == said


def test_other_languages_lose_only_markup() -> None:
    assert normalized("**Dr. Meier** zahlt $5", "de-DE") == "Dr. Meier zahlt $5"


@pytest.mark.parametrize(
    "text", ["M\u017f. Smith ", "\u017fep 5", "\u0131.e. f\u0131g. 3", "5 m\u017f, \u017ft. Mary"]
)
def test_letters_that_match_others_without_regard_to_case(text: str) -> None:
    """The long s and the dotless i match "s" and "i", and are not these in lower case."""
    assert normalized(text, "en")


@pytest.mark.parametrize("part", ["1-", "a.b@", "$1,000", "[x](", "1/2/", "12:30 ", "**", "+1 22 "])
def test_no_pattern_takes_time_that_grows_with_the_square_of_the_text(part: str) -> None:
    # Such a pattern would take minutes.
    assert normalized("so " + part * 50_000, "en").startswith("so")
