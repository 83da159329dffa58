"""``galley cache tune``: the threshold of the semantic cache from labeled pairs of questions."""

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from galley.cli.options import Command
from galley.cli.server_api import TIMEOUT_SECONDS
from galley.cli.terminal import progress, table
from galley.errors import SettingsError, shown
from galley.files import complete_or_absent

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from galley.cache.agreement import Agreement
    from galley.cache.tuning import Pair, Result, Scored
    from galley.gateway.comparing import RemoteEmbedder
    from galley.settings.config import Settings

_TOGETHER: Final = 64
_SHOWN: Final = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.98, 0.99)
_THRESHOLD: Final = "semantic_cache_threshold"
_RERANKER_THRESHOLD: Final = "semantic_cache_reranker_threshold"
_AGREEMENT: Final = "semantic_cache_agreement"


@click.command(cls=Command)
@click.argument("data", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--model", help="embedding model, or its name at --url; default: semantic_cache_model"
)
@click.option("--url", help="server with OpenAI's embeddings API; default: semantic_cache_url")
@click.option(
    "--reranker", help="cross-encoder that also compares; default: semantic_cache_reranker"
)
@click.option(
    "--answers",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="labeled pairs of answers, in the form of DATA: also find the cosine from which two say the same",
)
@click.option(
    "--budget",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="largest share of hits that may be false; default: semantic_cache_budget, 0.01",
)
@click.option(
    "--write",
    type=click.Path(path_type=Path, dir_okay=False),
    help="settings file, such as galley.yaml, in which to set what was found",
)
def tune(
    data: Path,
    model: str | None,
    url: str | None,
    reranker: str | None,
    answers: Path | None,
    budget: float | None,
    write: Path | None,
) -> None:
    """Find the threshold of the semantic response cache from labeled pairs of questions.

    DATA has JSON lines {"a": "...", "b": "...", "same": true}, or is a .csv or .tsv file with these
    columns or those of Quora's question pairs. Prints for each threshold how many pairs that mean the
    same are hits, and how many hits are false, with intervals of 95 %; then the threshold with the most
    hits whose share of false ones is below the budget with 95 % certainty.

    With --answers, it also prints for each cosine of two answers how many that say the same would count as
    false hits, and how many that do not would pass the check of hits; then the highest one whose false
    alarms stay below the budget.
    """
    from galley.cache.tuning import chosen, fewest_hits, read_pairs, results
    from galley.settings.config import Settings

    settings = Settings.load({})
    budget = settings.semantic_cache_budget if budget is None else budget
    pairs = read_pairs(data)
    answer_pairs = None if answers is None else read_pairs(answers)
    scored = _scored(pairs, settings, model, url, reranker)
    found, bare = results(scored), results(scored, facts=False)
    best = chosen(found, budget)
    _print(found, best, len(pairs))
    if best is None:
        raise SettingsError(
            f"no threshold keeps false hits below {100 * budget:.3g} % with 95 % certainty; give more "
            f"pairs (a threshold needs {fewest_hits(budget)} hits if none is false), another embedding "
            "model, or a larger --budget"
        )
    _print_cosine_alone(bare, best)
    lines = {_THRESHOLD: f"{best.threshold:.3f}"}
    if best.ranking is not None:
        lines[_RERANKER_THRESHOLD] = f"{best.ranking:.6g}"
    if answer_pairs is not None:
        agreement = _agreement(answer_pairs, settings, model, url, budget)
        lines[_AGREEMENT] = f"{agreement.threshold:.3f}"
    click.echo("\n".join(f"{name}: {value}" for name, value in lines.items()))
    if write is not None:
        set_in(write, lines)
        click.echo(f"written to {write}")


def _agreement(
    pairs: "Sequence[Pair]", settings: "Settings", model: str | None, url: str | None, budget: float
) -> "Agreement":
    """Print the mistakes of each cosine of two answers, and return the best one."""
    from galley.cache.agreement import agreements, chosen_agreement
    from galley.cache.tuning import fewest_hits

    found = agreements(pairs, _similarity(pairs, settings, model, url))
    best = chosen_agreement(found, budget)
    shown = [one for one in found if one.threshold in _SHOWN or one is best]
    rows = [
        (
            f"{one.threshold:.3f}{' *' if one is best else ''}",
            *_counted(one.alarms, one.same),
            *_counted(one.missed, one.different),
        )
        for one in shown
    ]
    click.echo(f"{len(pairs)} pairs of answers, {found[0].same} of which say the same")
    header = ("cosine", "alarms", "of same", "of 95 %", "missed", "of different", "of 95 %")
    click.echo(table(header, rows, left=(0,)))
    if best is None:
        raise SettingsError(
            f"no cosine keeps false alarms below {100 * budget:.3g} % with 95 % certainty; give more pairs "
            f"of answers (it takes {fewest_hits(budget)} that say the same if none is an alarm), another "
            "embedding model, or a larger --budget"
        )
    return best


def _counted(count: int, of: int) -> tuple[str, str, str]:
    """Return a count, its share, and the interval of the share."""
    from galley.cache.chances import interval

    low, high = interval(count, of)
    return str(count), f"{100 * count / max(1, of):.2f} %", f"{100 * low:.2f} to {100 * high:.2f}"


def _print(found: "Sequence[Result]", best: "Result | None", pairs: int) -> None:
    from galley.cache.chances import interval

    ranking = found[0].ranking if best is None else best.ranking
    shown = [one for one in found if one.ranking == ranking and one.threshold in _SHOWN]
    if best is not None and best not in shown:
        shown = sorted([*shown, best], key=lambda one: one.threshold)
    header = ("threshold", "hits", "hit rate", "of 95 %", "false", "of hits", "of 95 %")
    rows = []
    for one in shown:
        low, high = interval(one.hits - one.false, one.same)
        mark = " *" if one is best else ""
        rows.append(
            (
                f"{one.threshold:.3f}{mark}",
                str(one.hits),
                f"{100 * one.hit_rate:.1f} %",
                f"{100 * low:.1f} to {100 * high:.1f}",
                *_counted(one.false, one.hits),
            )
        )
    click.echo(f"{pairs} pairs, {found[0].same} of which mean the same (the hit rate is of these)")
    click.echo(table(header, rows, left=(0,)))


def _print_cosine_alone(bare: "Sequence[Result]", best: "Result") -> None:
    from galley.cache.tuning import at_hit_rate

    same_rate = at_hit_rate(bare, best.hit_rate)
    if same_rate is not None:
        click.echo(
            f"the cosine alone, at the same hit rate (threshold {same_rate.threshold:.3f}): "
            f"{100 * same_rate.false_rate:.1f} % of hits false"
        )


def _scored(
    pairs: "Sequence[Pair]",
    settings: "Settings",
    model: str | None,
    url: str | None,
    reranker: str | None,
) -> "list[Scored]":
    """Return what the cache would know of each pair."""
    from galley.cache.tuning import score

    similarity = _similarity(pairs, settings, model, url)
    reranker = reranker or settings.semantic_cache_reranker
    rankings = _rankings(pairs, settings, reranker) if reranker else None
    return score(pairs, similarity, rankings)


def _similarity(
    pairs: "Sequence[Pair]", settings: "Settings", model: str | None, url: str | None
) -> Callable[[str, str], float]:
    """Embed all texts; return a function that gives the cosine of two of them."""
    model = model or settings.semantic_cache_model
    if not model:
        raise SettingsError("give --model, the embedding model that compares questions")
    texts = list(dict.fromkeys(text for pair in pairs for text in pair[:2]))
    vectors = _vectors(texts, settings, model, url or settings.semantic_cache_url)
    place = {text: number for number, text in enumerate(texts)}
    return lambda a, b: float(vectors[place[a]] @ vectors[place[b]])


def _vectors(
    texts: Sequence[str], settings: "Settings", model: str, url: str
) -> "NDArray[np.float32]":
    """Return a row of length 1 for each text."""
    import numpy as np

    from galley.gateway.comparing import RemoteEmbedder

    found: list[NDArray[np.float32]] = []
    with progress("embedding", len(texts)) as bar:
        if url:
            # The key is that of the server in the settings, not of any other.
            own = url == settings.semantic_cache_url or not settings.semantic_cache_url
            embedder = RemoteEmbedder(url, model, settings.semantic_cache_api_key if own else "")
            for begin in range(0, len(texts), _TOGETHER):
                some = _remote(embedder, texts[begin : begin + _TOGETHER], url)
                found.append(some)
                bar.update(len(some))
        else:
            from galley.llm.llm import LLM

            with LLM(_path(settings, model)) as llm:
                for begin in range(0, len(texts), _TOGETHER):
                    some = llm.embed(list(texts[begin : begin + _TOGETHER]), truncate=True)
                    found.append(np.asarray(some, np.float32))
                    bar.update(len(some))
    vectors = np.concatenate(found)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        number = int(np.argmin(np.isfinite(lengths) & (lengths > 0)))
        raise SettingsError(
            f"{model} has no usable vector for {shown(texts[number])}: it is zero or not finite"
        )
    unit: NDArray[np.float32] = vectors / lengths
    return unit


def _remote(embedder: "RemoteEmbedder", texts: Sequence[str], url: str) -> "NDArray[np.float32]":
    """Return a row for each text. Raises SettingsError if the server does not return them."""
    import numpy as np

    from galley.cache.store import StoreError

    try:
        vectors = embedder.vectors(texts, TIMEOUT_SECONDS)
    except StoreError as error:
        raise SettingsError(str(error)) from error
    if vectors is None:
        raise SettingsError(f"{url} refuses some of the texts; they may be too long for its model")
    if len({len(one) for one in vectors}) != 1:
        raise SettingsError(f"{url} returned vectors of different lengths")
    return np.stack([np.frombuffer(one, np.float32) for one in vectors])


def _rankings(pairs: "Sequence[Pair]", settings: "Settings", reranker: str) -> list[float]:
    from galley.llm.llm import LLM

    scores = []
    with LLM(_path(settings, reranker)) as llm, progress("comparing", len(pairs)) as bar:
        for pair in pairs:
            scores += llm.rerank(pair.first, [pair.second], truncate=True)
            bar.update(1)
    return scores


def _path(settings: "Settings", model: str) -> str:
    """Return the model of that name in the settings, or else ``model`` itself."""
    for named in settings.models:
        if named.name == model:
            return str(named.own.get("model", model))
    return model


def set_in(path: Path, lines: dict[str, str]) -> None:
    """Set top-level settings of a YAML file, in place of earlier values or at its end.

    Raises:
        SettingsError: the file cannot be written.
    """
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for name, value in lines.items():
            spelled = name.replace("_", "[_-]")
            pattern = re.compile(rf"^{spelled}[ \t]*:.*$", re.MULTILINE)
            line = f"{name}: {value}"
            if pattern.search(text):
                text = pattern.sub(line, text)
            else:
                text += ("" if not text or text.endswith("\n") else "\n") + line + "\n"
        path = path.resolve()
        with complete_or_absent(path) as partial:
            if path.exists():
                # It may have keys: the new file is never readable by more people than the old one.
                partial.touch(mode=0o600)
                shutil.copymode(path, partial)
            partial.write_text(text, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot write {path}: {error}") from error
