"""Hashes preserve which prefixes are shared, and nothing else; growing prompts are sessions."""

import random

from galley.traffic.blocks import Hasher


def tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(30_000), k=count)


def test_equal_prefixes_have_equal_blocks() -> None:
    hasher = Hasher()
    common = tokens(200)
    first = hasher.prompt([*common, *tokens(100, 1)], "x").blocks
    second = hasher.prompt([*common, *tokens(130, 2)], "x").blocks
    assert (len(first), len(second)) == (5, 6)
    assert first[:3] == second[:3]
    assert not set(first[3:]) & set(second[3:])


def test_blocks_depend_on_what_precedes_them_and_on_the_scope() -> None:
    hasher = Hasher()
    block = tokens(64)
    twice = hasher.prompt([*block, *block], "x").blocks
    assert twice[0] != twice[1]
    assert hasher.prompt(block, "y").blocks != hasher.prompt(block, "x").blocks


def test_another_run_has_other_hashes() -> None:
    assert Hasher().prompt(tokens(64), "x").blocks != Hasher().prompt(tokens(64), "x").blocks
    assert Hasher().pseudonym("acme") != Hasher().pseudonym("acme")


def test_numbers_are_exact_in_json() -> None:
    assert max(Hasher().prompt(tokens(6400), "x").blocks) < 2**53


def test_a_prompt_that_continues_another_is_of_its_session() -> None:
    for length in (10, 63, 64, 65, 128, 1000):
        hasher = Hasher()
        prompt = tokens(length)
        first = hasher.prompt(prompt, "x").session
        assert hasher.prompt(tokens(length, 1), "x").session != first
        for turn in range(3):
            prompt = [*prompt, *tokens(40, 2 + turn)]
            assert hasher.prompt(prompt, "x").session == first, length
        assert hasher.prompt(prompt, "y").session != first


def test_a_common_system_prompt_makes_no_session() -> None:
    hasher = Hasher()
    system = tokens(300)
    sessions = {hasher.prompt([*system, *tokens(20, n)], "x").session for n in range(1, 50)}
    assert len(sessions) == 49
