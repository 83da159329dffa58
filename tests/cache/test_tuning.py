"""The threshold of the semantic cache, from labeled pairs."""

import json
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from scipy import stats

from galley.cache.agreement import agreements, chosen_agreement
from galley.cache.chances import at_least, interval
from galley.cache.tuning import (
    Pair,
    Scored,
    at_hit_rate,
    chosen,
    fewest_hits,
    read_pairs,
    results,
    score,
)
from galley.cli.cache_tune import set_in
from galley.demo import question_pairs as recipe
from galley.demo.questions import QUESTIONS
from galley.errors import SettingsError
from galley.llm.llm import LLM
from recipes.questions.answers import ANSWERS
from tests.cli.command import galley

BUDGET = 0.01


def test_chances_are_those_of_scipy() -> None:
    for count, of, share in ((0, 10, 0.1), (1, 1, 0.01), (3, 250, 0.01), (900, 1000, 0.9)):
        assert at_least(count, of, share) == pytest.approx(
            stats.binom.sf(count - 1, of, share), abs=1e-9
        )
        found = stats.binomtest(count, of).proportion_ci(method="wilson")
        assert interval(count, of) == pytest.approx((found.low, found.high))


def test_counts_are_those_of_a_plain_count() -> None:
    rng = random.Random(1)
    scored = [
        Scored(rng.random() < 0.5, rng.uniform(-0.2, 1), rng.random() < 0.8, rng.random())
        for _ in range(300)
    ]
    for one in rng.sample(results(scored), 50):
        hits = [
            s
            for s in scored
            if s.facts_agree
            and s.similarity >= one.threshold
            and (s.ranking or 0) >= (one.ranking or 0)
        ]
        assert one.hits == len(hits)
        assert one.false == sum(not s.same for s in hits)
    rates = [one.hit_rate for one in results(scored, facts=False)]
    assert all(later <= earlier for earlier, later in pairwise(rates))


def test_few_pairs_show_nothing() -> None:
    few = fewest_hits(BUDGET)
    assert few == 299
    assert fewest_hits(0.001) == 2995
    enough = [Scored(True, 0.95, True)] * few + [Scored(False, 0.5, True)]
    best = chosen(results(enough), BUDGET)
    assert best is not None
    assert best.threshold == pytest.approx(0.95)
    assert chosen(results(enough[1:]), BUDGET) is None


@pytest.fixture(scope="module")
def embedder() -> Iterator[LLM]:
    with LLM("galley-demo-embed") as llm:
        yield llm


def scored(embedder: LLM, some: list[recipe.Pair]) -> list[Scored]:
    texts = list(dict.fromkeys(text for pair in some for text in (pair.a, pair.b)))
    vectors = dict(zip(texts, embedder.embed(texts), strict=True))
    labeled = [Pair(pair.a, pair.b, pair.same) for pair in some]
    return score(labeled, lambda a, b: float(vectors[a] @ vectors[b]))


def test_false_hits_of_questions_that_tune_has_not_seen_are_few(embedder: LLM) -> None:
    """Tuned with half of the questions, measured with the others; the cosine alone is far off."""
    halves = [tuple(range(half, len(QUESTIONS), 2)) for half in (0, 1)]
    seen, others = (scored(embedder, recipe.pairs(1200, 1, half)) for half in halves)
    best = chosen(results(seen), BUDGET)
    assert best is not None
    [here] = [one for one in results(others) if one.threshold == best.threshold]
    assert here.false_rate < BUDGET
    assert here.hit_rate > 0.2
    bare = at_hit_rate(results(others, facts=False), here.hit_rate)
    assert bare is not None
    assert bare.false_rate > 10 * BUDGET


def test_mistakes_about_answers_are_those_of_a_plain_count() -> None:
    rng = random.Random(2)
    words = ["yes", "no", "2 days", "3 days", "it is"]
    pairs = [
        Pair(
            " ".join(rng.choices(words, k=2)), " ".join(rng.choices(words, k=2)), rng.random() < 0.5
        )
        for _ in range(300)
    ]
    cosines = {pair[:2]: rng.uniform(-0.2, 1) for pair in pairs}

    def agree(pair: Pair, threshold: float) -> bool:
        one, other = ({word for word in text if word.isdigit()} for text in pair[:2])
        alike = one <= other or other <= one
        return pair.first == pair.second or (alike and cosines[pair[:2]] >= threshold)

    found = agreements(pairs, lambda a, b: cosines[a, b])
    for one in rng.sample(found, 50):
        alarms = [pair for pair in pairs if pair.same and not agree(pair, one.threshold)]
        missed = [pair for pair in pairs if not pair.same and agree(pair, one.threshold)]
        assert (one.alarms, one.missed) == (len(alarms), len(missed))


def test_answers_that_say_the_same_rarely_count_as_false_hits(embedder: LLM) -> None:
    """Measured with answers of other values than it was tuned with."""
    seen, others = (recipe.pairs(800, seed, texts=ANSWERS) for seed in (1, 2))
    texts = list(dict.fromkeys(text for pair in (*seen, *others) for text in (pair.a, pair.b)))
    vectors = dict(zip(texts, embedder.embed(texts), strict=True))
    tuned, found = (
        agreements(
            [Pair(one.a, one.b, one.same) for one in some],
            lambda a, b: float(vectors[a] @ vectors[b]),
        )
        for some in (seen, others)
    )
    best = chosen_agreement(tuned, 0.05)
    assert best is not None
    [here] = [one for one in found if one.threshold == best.threshold]
    assert here.alarm_rate < 0.1
    assert here.missed_rate < 0.9


def test_the_command_writes_what_it_chose(tmp_path: Path) -> None:
    data, written = tmp_path / "pairs.csv", tmp_path / "galley.yaml"
    answers = tmp_path / "answers.jsonl"
    said = [
        (f"Shelf {n} is on the left.", f"You find shelf {n} on the left.", 1) for n in range(320)
    ]
    said += [(f"Shelf {n} is on the left.", f"Call {n} people tomorrow.", 0) for n in range(9)]
    answers.write_text(
        "\n".join(json.dumps(dict(zip("ab", x, strict=False), same=x[2])) for x in said)
    )
    lines = ["question1,question2,is_duplicate"]
    lines += [f"Where is shelf {n}?,Where can I find shelf {n}?,1" for n in range(320)]
    lines += [f"Where is shelf {n}?,Where is shelf {n + 1}?,0" for n in range(10)]
    data.write_text("\n".join(lines))
    written.write_text("port: 1\nsemantic_cache_threshold: 0.1  # old\n")
    flags = ("--model", "galley-demo-embed", "--answers", answers, "--write", written)
    done = galley("cache", "tune", data, *flags)
    assert done.returncode == 0, done.stderr
    assert "330 pairs, 320 of which mean the same" in done.stdout
    assert "329 pairs of answers, 320 of which say the same" in done.stdout
    threshold, agreement = (
        line for line in done.stdout.splitlines() if line.startswith("semantic_cache_")
    )
    assert written.read_text() == f"port: 1\n{threshold}\n{agreement}\n"
    assert 0.5 < float(agreement.removeprefix("semantic_cache_agreement: ")) < 1


def test_a_wrong_file_of_answers_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    data, answers = tmp_path / "pairs.csv", tmp_path / "answers.jsonl"
    data.write_text("a,b,same\nOne?,1?,1\nOne?,Two?,0\n")
    answers.write_text("{}\n")
    done = galley("cache", "tune", data, "--model", tmp_path / "none", "--answers", answers)
    assert done.returncode == 2
    assert f"{answers}, line 1" in done.stderr


def test_a_settings_file_that_only_its_owner_reads_stays_so(tmp_path: Path) -> None:
    written, link = tmp_path / "own.yaml", tmp_path / "galley.yaml"
    written.write_text("semantic_cache_api_key: secret")
    written.chmod(0o600)
    link.symlink_to(written)
    set_in(link, {"semantic_cache_threshold": "0.9"})
    assert written.read_text() == "semantic_cache_api_key: secret\nsemantic_cache_threshold: 0.9\n"
    assert written.stat().st_mode & 0o777 == 0o600
    assert sorted(tmp_path.iterdir()) == [link, written]


def test_a_setting_that_is_written_with_hyphens_is_replaced(tmp_path: Path) -> None:
    written = tmp_path / "galley.yaml"
    written.write_text("semantic-cache-threshold: 0.1\nport: 1\n")
    set_in(written, {"semantic_cache_threshold": "0.9"})
    assert written.read_text() == "semantic_cache_threshold: 0.9\nport: 1\n"


def test_a_pair_after_texts_of_several_lines_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text('a,b,same\n"one\ntwo",three,1\nfour,five,maybe\n')
    with pytest.raises(SettingsError, match="line 4: same is 'maybe'"):
        read_pairs(path)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "line 1 is not a JSON object"),
        ('{"a": "x", "b": "y"}', "line 1 is not a pair"),
        ('{"a": "x", "b": "y", "same": "maybe"}', "same is 'maybe'"),
        ('{"a": "x", "b": " ", "same": true}', "a text is empty"),
        ('{"a": "x", "b": "y", "same": true}', "pairs that do not"),
        ("", "pairs that do not"),
    ],
)
def test_data_that_is_not_pairs_is_refused(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(text)
    with pytest.raises(SettingsError, match=error):
        read_pairs(path)
    with pytest.raises(SettingsError, match="cannot read"):
        read_pairs(tmp_path / "none")
