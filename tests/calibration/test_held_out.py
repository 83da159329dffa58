"""No text is used both to calibrate and to measure."""

import pytest

from galley import SettingsError
from galley.calibration.held_out import all_measured, apart, first_texts, held_apart
from tests.checkpoints import random_ids

TEXTS = [random_ids(seed, 8) for seed in range(17)]


def test_one_text_in_eight_is_measured_on() -> None:
    texts = held_apart(TEXTS)
    assert texts.measured == TEXTS[::8]
    assert texts.calibration == [*TEXTS[1:8], *TEXTS[9:16]]


def test_a_repeated_text_is_not_used_for_calibration() -> None:
    texts = held_apart([*TEXTS[:9], TEXTS[0], TEXTS[8], TEXTS[9]])
    assert texts.measured == [TEXTS[0], TEXTS[8]]
    assert texts.calibration == [*TEXTS[1:8], TEXTS[9]]


def test_without_calibration_all_are_measured_on() -> None:
    assert all_measured(TEXTS) == ([], TEXTS)


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_texts_to_hold_some_out_are_refused(count: int) -> None:
    with pytest.raises(SettingsError, match="give more text"):
        held_apart(TEXTS[:count] * 4)
    with pytest.raises(SettingsError, match="give more text"):
        apart(TEXTS[:3], [])


def test_the_first_texts_keep_to_the_tokens() -> None:
    assert first_texts(TEXTS, 16) == TEXTS[:2]
    assert first_texts(TEXTS, 23) == TEXTS[:2]
    assert first_texts(TEXTS, 3) == TEXTS[:1]
