"""Transcripts that the response cache has of recordings, by the digests of their files."""

import hashlib
import time
from typing import BinaryIO, Final

import msgspec

from galley.cache.directives import Outcome
from galley.cache.entry import Entry
from galley.cache.keys import digest, encoded
from galley.errors import NotStored
from galley.gateway.call import Call

_BLOCK_BYTES: Final = 1 << 20


class StoredRecording:
    """The place of one recording's transcript in the cache.

    Attributes:
        found: the stored transcript, as bytes; None: it has to be made.
    """

    def __init__(self, call: Call, key: bytes | None, found: Entry | None) -> None:
        """Remember the place; :func:`look_up` calls this."""
        self._call = call
        self._key = key
        self.found = None if found is None else found.body

    def keep(self, transcript: msgspec.Struct) -> None:
        """Store a transcript that is complete."""
        responses, caller = self._call.backend.responses, self._call.caller
        if responses is None or self._key is None or not caller.directives.writes:
            return
        now, most = time.time(), responses.cache.seconds
        responses.cache.put(
            Entry(
                key=self._key,
                kind="transcript",
                model=self._call.model,
                folder=responses.folder,
                tenant=caller.tenant.name,
                tag=caller.directives.tag,
                created=now,
                expires=now + min(most, caller.directives.ttl or most),
                output_tokens=self._call.generated,
                engine_seconds=self._call.receipt.engine_seconds,
                body=msgspec.msgpack.encode(transcript),
            )
        )


def digest_of(file: BinaryIO) -> bytes:
    """Return a digest of a file's bytes. Takes a second per gigabyte or so; the file is rewound."""
    found = hashlib.sha256()
    file.seek(0)
    while block := file.read(_BLOCK_BYTES):
        found.update(block)
    file.seek(0)
    return found.digest()


async def look_up(call: Call, content: bytes, options: object) -> StoredRecording:
    """Look a recording's transcript up.

    Args:
        call: opened for the request; its caller's headers report what the cache did.
        content: from :func:`digest_of`.
        options: plain values of all that shapes the transcript.

    Raises:
        NotStored: only a stored transcript is wanted, and there is none.
        RequestError: the request wants the cache, and the server has none.
    """
    caller, responses = call.caller, call.backend.responses
    mode = call.cache_mode
    if responses is None:
        return StoredRecording(call, None, None)
    outcome = caller.cached = Outcome()
    entry = key = None
    if mode == "off":
        outcome.bypassed = 1
    else:
        tenant = caller.tenant.name.encode()
        key = digest(responses.identity, b"recording", tenant, content, encoded(options))
        outcome.keys.append(key.hex())
        if caller.directives.reads:
            [entry] = await responses.cache.get([key])
            if (
                entry is not None
                and (age := time.time() - entry.created) <= caller.directives.max_age
            ):
                outcome.hits, outcome.age = 1, max(0.0, age)
                saved = entry.engine_seconds
                responses.counts.saved(prompt=0, generated=entry.output_tokens, seconds=saved)
            else:
                outcome.misses, entry = 1, None
        else:
            outcome.bypassed = 1
    responses.counts.looked_up(outcome.word)
    caller.headers.update(outcome.headers())
    caller.record["cache"] = outcome.word
    if entry is None and caller.directives.only_stored:
        raise NotStored("This recording's transcript is not stored, and only-if-cached is given")
    return StoredRecording(call, key, entry)
