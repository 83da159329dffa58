"""The texts of a command that looks at a model beside data."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from galley.settings.config import Settings

if TYPE_CHECKING:
    from galley.engine.read_model import Model
    from galley.quality.texts import Texts


def texts_for(
    settings: Settings,
    read: "Model",
    data: Path | None,
    *,
    tokens: int,
    context: int,
    mark_answers: bool = False,
) -> "Texts":
    """From the file, or as the model makes them; these are kept for the next time.

    Args:
        settings: of the model.
        read: its checkpoint.
        data: a file that :func:`galley.quality.texts.read_texts` reads.
        tokens: in all.
        context: tokens of a window at most.
        mark_answers: of a file, tell which tokens are the assistant's.

    Raises:
        RequestError: the file cannot be read, or has too little text.
    """
    from galley.calibration import store
    from galley.llm.llm import LLM
    from galley.quality.texts import Texts, own_texts, read_texts

    known = f"{read.checkpoint.state()} own text {tokens} {context}"
    name = hashlib.sha256(known.encode()).hexdigest()[:32]
    kept = store.get(name, Texts) if data is None else None
    if kept is not None:
        return kept
    with LLM.from_settings(settings) as llm:
        window = min(context, llm.info.max_request_tokens)
        if data is not None:
            size = {"context": window, "tokens": tokens}
            return read_texts(llm, data, **size, mark_answers=mark_answers)
        texts = own_texts(llm, context=window, tokens=tokens)
    store.put(name, f"calibration text of {settings.model}, {texts.tokens} tokens", texts)
    return texts
