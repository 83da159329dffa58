"""Recordings that are transcribed by an engine in the caller's process, one alone or some at a time."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Final, NamedTuple, Self

from galley.errors import GalleyError
from galley.llm.local import LocalEngine
from galley.machine import available_cores
from galley.speech.captions import text_of
from galley.speech.chunk_source import ChunkSource
from galley.speech.results import Info, Segment
from galley.speech.session import Session
from galley.types import Output

AT_A_TIME: Final = 8
"""Recordings that are open at a time; each has a decoder process, and at most eight chunks in memory."""


class Ended(NamedTuple):
    """A recording has no more segments.

    Attributes:
        error: why it could not be transcribed to its end; None if it was.
    """

    error: GalleyError | None = None


class Transcription:
    """A recording that is transcribed while its segments are iterated over, in order, and only once."""

    def __init__(self, engine: LocalEngine, session: Session, chunks: ChunkSource) -> None:
        """Create the object; called by :meth:`galley.speech.transcribe.Transcriber.transcribe`."""
        self._engine = engine
        self._session = session
        self._chunks = chunks

    def __repr__(self) -> str:
        stated = self.stated_duration
        length = "" if stated is None else f" of {stated:.1f} s"
        return (
            f"Transcription(a recording{length}, {self.info.duration:.1f} s of it read; iterate for its "
            "segments, or call text())"
        )

    @property
    def info(self) -> Info:
        """The information about the recording so far; complete after the last segment."""
        return self._chunks.info(self._session)

    @property
    def stated_duration(self) -> float | None:
        """The duration in seconds that the file's header states; None if it states none."""
        return self._chunks.stated_duration

    def text(self) -> str:
        """Transcribe the whole recording and return the transcript as one line."""
        return text_of(self)

    def __iter__(self) -> Iterator[Segment]:
        with closing(together(self._engine, [self])) as found:
            for _, segment in found:
                yield segment

    def close(self) -> None:
        """Close the recording, which is not transcribed any further. Idempotent."""
        self._chunks.close()


def together(
    engine: LocalEngine, transcriptions: Sequence[Transcription]
) -> Generator[tuple[int, Segment], None, None]:
    """Transcribe recordings at the same time; see :meth:`galley.speech.transcribe.Transcriber.together`."""
    begun = [_as_begun(one) for one in transcriptions]
    with ExitStack() as stack:
        for one in transcriptions:
            stack.enter_context(closing(one))
        found = stack.enter_context(closing(in_turn(engine, begun, max(1, len(begun)))))
        for place, segment in found:
            if not isinstance(segment, Ended):
                yield place, segment
            elif segment.error is not None:
                raise segment.error


def _as_begun(one: Transcription) -> Callable[[], Transcription]:
    return lambda: one


def in_turn(
    engine: LocalEngine, recordings: Iterable[Callable[[], Transcription]], at_a_time: int
) -> Generator[tuple[int, Segment | Ended], None, None]:
    """Transcribe recordings, some at a time; see ``Transcriber.transcribe_each``."""
    with _Group(engine, recordings, at_a_time) as group:
        while not group.done:
            yield from group.admit()
            yield from group.advance()


class _Group:
    """The recordings that are open, in one run of the engine."""

    def __init__(
        self,
        engine: LocalEngine,
        recordings: Iterable[Callable[[], Transcription]],
        at_a_time: int,
    ) -> None:
        self._run = engine.run([])
        self._waiting = enumerate(recordings)
        self._all_begun = False
        self._at_a_time = at_a_time
        self._open: dict[int, Transcription] = {}
        self._places: dict[str, int] = {}
        """Request -> place of its recording."""
        self._pool = ThreadPoolExecutor(max(1, min(at_a_time, available_cores())))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        self._run.close()
        for one in self._open.values():
            one.close()

    @property
    def done(self) -> bool:
        """Whether every recording has ended."""
        return self._all_begun and not self._open

    def admit(self) -> Iterator[tuple[int, Segment | Ended]]:
        """Open recordings while there is room, and read their first chunks, each on one core."""
        new: list[int] = []
        while len(self._open) < self._at_a_time and not self._all_begun:
            item = next(self._waiting, None)
            if item is None:
                self._all_begun = True
                break
            place, begin = item
            try:
                self._open[place] = begin()
            except GalleyError as error:
                yield place, Ended(error)
            else:
                new.append(place)
        # No step of the engine runs meanwhile.
        read = self._pool.map(self._read, new) if len(new) > 1 else map(self._read, new)
        for place, unreadable in zip(new, list(read), strict=True):
            yield from self._go_on(place, unreadable)

    def advance(self) -> Iterator[tuple[int, Segment | Ended]]:
        """Process the engine's next output."""
        output = next(self._run, None)
        if output is not None:
            yield from self._take(output)

    def _take(self, output: Output) -> Iterator[tuple[int, Segment | Ended]]:
        place = self._places[output.request_id]
        if output.finish_reason is not None:
            del self._places[output.request_id]
        session = self._open[place]._session
        try:
            session.take(output)
        except GalleyError as error:
            yield from self._go_on(place, error)
            return
        for segment in session.segments():
            yield place, segment
        yield from self._go_on(place, self._read(place))

    def _read(self, place: int) -> GalleyError | None:
        """Read chunks of a recording into its session while that has room; return what prevents it."""
        one = self._open[place]
        try:
            one._chunks.fill(one._session)
        except GalleyError as error:
            return error
        return None

    def _go_on(
        self, place: int, error: GalleyError | None
    ) -> Iterator[tuple[int, Segment | Ended]]:
        """Submit a recording's next requests; without any, and after an error, it has ended."""
        one = self._open[place]
        if error is None:
            requests = one._session.requests()
            self._places.update((request.id, place) for request in requests)
            self._run.add(requests)
            if not one._session.idle:
                return
            for segment in one._session.segments():
                yield place, segment
        else:
            mine = [name for name, at in self._places.items() if at == place]
            self._run.cancel(mine)
            for name in mine:
                del self._places[name]
        del self._open[place]
        one.close()
        yield place, Ended(error)
