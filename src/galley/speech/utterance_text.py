"""Transcripts of an utterance as final and interim text of its turn."""

from collections.abc import Callable

from galley.speech.agreement import LocalAgreement, align_head, split
from galley.speech.live_text import LiveText
from galley.speech.utterance import Utterance


class UtteranceText:
    """Adds what transcripts of utterances agree on to the text of a stream.

    Args:
        text: the text of the stream.
        is_long: whether a text is too long to be a prefix of the next decoding.
    """

    def __init__(self, text: LiveText, is_long: Callable[[str], bool]) -> None:
        self._text = text
        self._is_long = is_long

    def take_partial(self, utterance: Utterance, text: str | None, language: str) -> str:
        """Process a partial transcript of all the utterance's audio.

        Args:
            utterance: the first one that is not complete.
            text: the transcript; None if the decoding was not good.
            language: the spoken language; empty: unknown.

        Returns:
            The interim text after the turn's final text.
        """
        agreement = utterance.agreement
        first = not agreement.final
        utterance.partial = text
        if text is None:
            agreement.reject()
        else:
            self._add_final(utterance, agreement.update(text, language), language, first=first)
        interim = self._text.spaced(
            utterance.turn, agreement.interim, language, first=not agreement.final
        )
        self._text.set_interim(utterance.turn, interim)
        return interim

    def finish(self, utterance: Utterance, text: str, language: str) -> None:
        """Add the final transcript of all the utterance's audio."""
        first = not utterance.agreement.final
        self._add_final(utterance, utterance.agreement.finish(text), language, first=first)
        self._text.set_interim(utterance.turn, "")
        self._text.add_context(utterance.turn, utterance.agreement.final)

    def cut(self, utterance: Utterance, at: int, head: str, language: str) -> None:
        """Remove the utterance's audio before ``at``, whose final transcript is ``head``.

        Final words after ``at`` remain the prefix of the remaining audio's transcript.
        """
        agreement = utterance.agreement
        words, final = split(head, language), split(agreement.final, language)
        in_head, sent = align_head(words, final) if words else (len(final), 0)
        rest = "".join(final[in_head:])
        self._add_final(utterance, "".join(words[sent:]), language, first=not agreement.final)
        self._text.add_context(utterance.turn, head)
        if self._is_long(rest):
            rest = ""
        utterance.agreement = LocalAgreement(rest if head.startswith(" ") else rest.lstrip())
        utterance.start = utterance.decoded_to = at
        utterance.cut_at = utterance.partial = None
        self._text.set_interim(utterance.turn, "")

    def _add_final(self, utterance: Utterance, text: str, language: str, *, first: bool) -> None:
        self._text.add_final(utterance.turn, text, language, first=first)
