"""Measure how often the nearest of all queues and glossary entries is the right one.

python -m recipes.embed.evaluate
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from galley import LLM
from galley.demo import EMBED_DIR

from .pairs import DOCUMENTS, held_out_callers, held_out_questions

Embed = Callable[[list[str]], npt.NDArray[np.float32]]


def recall(embed: Embed, queries: Sequence[tuple[str, str]]) -> float:
    """Return recall@1 of (text, label) among all documents, queues and glossary together."""
    labels = list(DOCUMENTS)
    documents = embed(list(DOCUMENTS.values()))
    nearest = (embed([text for text, _ in queries]) @ documents.T).argmax(axis=1)
    return float(
        np.mean([labels[at] == label for at, (_, label) in zip(nearest, queries, strict=True)])
    )


def recalls(embed: Embed) -> dict[str, float]:
    """Return the recall on both held-out sets of callers, and on the held-out questions."""
    return {
        "queues, set 1": recall(embed, held_out_callers(1)),
        "queues, set 2": recall(embed, held_out_callers(2)),
        "glossary": recall(embed, held_out_questions()),
    }


def served_recalls(folder: Path, **settings: Any) -> dict[str, float]:
    """Return `recalls` of the model in `folder` as Galley serves it."""
    with LLM(str(folder), **settings) as llm:
        return recalls(llm.embed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.embed.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, default=EMBED_DIR, help="checkpoint folder")
    for name, value in served_recalls(parser.parse_args(arguments).model).items():
        print(f"{name}: {value:.1%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
