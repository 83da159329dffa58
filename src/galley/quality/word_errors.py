"""The word error rate of a served speech model, measured through its API."""

from collections.abc import Sequence

from galley.bench.serve.client import Client
from galley.bench.serve.session import first_model
from galley.bench.serve.words import Words
from galley.bench.serve.workload import Workload
from galley.errors import EngineError
from galley.speech.evaluate import ManifestEntry, word_error_rate


async def word_errors(
    client: Client, workload: Workload, entries: Sequence[ManifestEntry]
) -> float:
    """Transcribe each recording once, one after another, and return the word error rate.

    Args:
        client: client of the server.
        workload: requests for the recordings of ``entries``, in their order.
        entries: recordings and what is said in them.

    Raises:
        EngineError: a recording was not transcribed.
        CallFailed: the server does not answer.
    """
    model = await first_model(client)
    texts = []
    for entry, request in zip(entries, workload.requests(model, Words(), run=0), strict=False):
        status, answer = await client.posted(request.path, request.content, request.content_type)
        if status != 200:
            raise EngineError(f"{entry.audio.name} was not transcribed ({status}): {answer}")
        texts.append(str(answer["text"]))
    return word_error_rate([entry.text for entry in entries], texts)
