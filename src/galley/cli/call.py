"""``galley call``: recorded calls to transcripts, reports and tickets, with the engine in this process."""

import dataclasses
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from galley.cli.options import Command, Flags, start_logging, with_flags
from galley.cli.speaker_options import Speakers, call_speaker_options
from galley.cli.speech_options import speech_options, transcribe_options
from galley.cli.terminal import progress
from galley.cli.transcribe import speech_settings
from galley.errors import EngineError, RequestError, SettingsError, Unavailable
from galley.redact.spans import KINDS
from galley.settings.engine import EngineSettings

if TYPE_CHECKING:
    from galley.calls.folder import CallFolder
    from galley.calls.pipeline import Pipeline
    from galley.calls.ticket import TicketWriter
    from galley.observe.audit import AuditLog

_POLL_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 2.0
"""Seconds before the second attempt; twice as many before each further one."""
_KEY_VARIABLE: Final = "GALLEY_TICKET_API_KEY"


@click.command(
    cls=Command,
    examples=(
        "galley call call.wav --output-dir results --redact all --redacted-audio",
        "galley call inbox --watch --output-dir results --redact all --audit-log audit.jsonl",
    ),
)
@with_flags(EngineSettings, model=True)
@click.argument(
    "recordings",
    type=click.Path(path_type=Path),
    help="a recording, or a folder of recordings",
)
@click.option(
    "--output-dir",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="folder of results: a subfolder for each recording, and _failed",
)
@click.option("--watch", is_flag=True, help="wait for more recordings in the folder, until stopped")
@click.option(
    "--attempts",
    type=click.IntRange(1, 20),
    default=3,
    show_default=True,
    help="attempts before a call is given up; a recording that cannot be read has one",
)
@click.option("--retry-failed", is_flag=True, help="process calls again that were given up")
@click.option("--tenant", default="", help="whose calls they are, for retention")
@click.option(
    "--redact",
    "kinds",
    metavar="KIND",
    multiple=True,
    help=f"remove personal data: all, or {', '.join(KINDS)}; repeat for several",
)
@click.option(
    "--redacted-audio",
    is_flag=True,
    help="also write the audio, with silence in place of what is removed",
)
@click.option(
    "--keep-music",
    is_flag=True,
    help="transcribe music and the tones of telephone keys, too; they are silenced otherwise",
)
@click.option(
    "--audit-log",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="append a line for each call, chained by hashes (galley audit verify)",
)
@click.option(
    "--ticket-url",
    metavar="URL",
    help="server with OpenAI's API whose model writes a ticket of the redacted transcript; its key is in "
    f"{_KEY_VARIABLE}",
)
@click.option("--ticket-model", metavar="NAME", help="the server's model")
@click.option(
    "--ticket-schema",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="JSON schema of a ticket; default: summary, topics, sentiment, resolved, next_steps",
)
@call_speaker_options
@speech_options
def call(
    flags: Flags,
    recordings: Path,
    output_dir: Path,
    kinds: tuple[str, ...],
    audit_log: Path | None,
    speakers: Speakers,
    **wanted: Any,
) -> None:
    """Process recorded calls: transcript by speaker, redaction, quality report and ticket.

    Each recording gets one folder of results, complete or not at all. A command that was killed continues
    where it was. Two channels with different audio are two speakers; otherwise speakers are found. The
    exit code is 1 if a call was given up.
    """
    settings = speech_settings(flags)
    start_logging(settings)
    if not recordings.exists():
        raise SettingsError(f"there is no file or folder {recordings}")
    watch, attempts = wanted.pop("watch"), wanted.pop("attempts")
    if watch and not recordings.is_dir():
        raise SettingsError(f"--watch needs a folder, and {recordings} is a file")
    redacted_audio = wanted.pop("redacted_audio")
    if redacted_audio and not kinds:
        raise SettingsError("--redacted-audio needs --redact KIND")
    ticket = _ticket_writer(*(wanted.pop(f"ticket_{name}") for name in ("url", "model", "schema")))
    tenant, retry = wanted.pop("tenant"), wanted.pop("retry_failed")
    keep_music = wanted.pop("keep_music")
    from galley.speech import require_extra

    require_extra()
    from galley.calls.folder import CallFolder
    from galley.calls.pipeline import CallOptions, Pipeline
    from galley.observe.audit import AuditLog
    from galley.speech.redaction import check_kinds
    from galley.speech.transcribe import Transcriber

    options = CallOptions(
        transcribe=dataclasses.replace(transcribe_options(**wanted), word_timestamps=True),
        diarize=speakers.options(),
        speaker_models=speakers.files(),
        redact=check_kinds(kinds),
        redacted_audio=redacted_audio,
        keep_music=keep_music,
        ticket=ticket,
        tenant=tenant,
    )
    audit = None if audit_log is None else AuditLog(audit_log)
    with CallFolder(output_dir) as folder, Transcriber.from_settings(settings) as transcriber:
        run = _Run(folder, Pipeline(transcriber, options), audit, options.redact, attempts)
        run.all(recordings, watch=watch, retry=retry)
    if run.failed:
        raise click.exceptions.Exit(1)


def _ticket_writer(
    url: str | None, model: str | None, schema: Path | None
) -> "TicketWriter | None":
    from galley.calls.ticket import SCHEMA, TicketWriter

    if url is None:
        for name, value in (("model", model), ("schema", schema)):
            if value is not None:
                raise SettingsError(f"--ticket-{name} needs --ticket-url")
        return None
    if model is None:
        raise SettingsError("--ticket-url needs --ticket-model NAME")
    fields = SCHEMA
    if schema is not None:
        try:
            fields = json.loads(schema.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(f"--ticket-schema {schema}: {error}") from error
        if not isinstance(fields, dict):
            raise SettingsError(f"--ticket-schema {schema}: expected a JSON object")
    key = os.environ.get(_KEY_VARIABLE)
    return TicketWriter(url=url, model=model, schema=fields, api_key=key)


class _Run:
    """Processes calls until none is left; counts those that were given up."""

    def __init__(
        self,
        folder: "CallFolder",
        pipeline: "Pipeline",
        audit: "AuditLog | None",
        redact: tuple[str, ...],
        attempts: int,
    ) -> None:
        self._folder = folder
        self._pipeline = pipeline
        self._audit = audit
        self._redact = redact
        self._attempts = attempts
        self.failed = 0

    def all(self, recordings: Path, *, watch: bool, retry: bool) -> None:
        """Process the recordings; with ``watch``, wait for more."""
        if retry:
            for name, _ in self._found(recordings, watch=False):
                self._folder.retry(name)
        while True:
            todo = [
                (name, path)
                for name, path in self._found(recordings, watch=watch)
                if not self._folder.is_done(name) and not self._folder.has_failed(name)
            ]
            if todo:
                with progress("calls", len(todo)) as bar:
                    for name, path in todo:
                        self._one(name, path)
                        bar.update(1)
            if not watch:
                return
            if not todo:
                time.sleep(_POLL_SECONDS)

    def _found(self, recordings: Path, *, watch: bool) -> Iterator[tuple[str, Path]]:
        from galley.calls.watch import recordings as in_folder

        if recordings.is_dir():
            yield from in_folder(recordings, settled=watch, results=self._folder.root)
            return
        self._folder.check_same(recordings.name, recordings)
        yield recordings.name, recordings

    def _one(self, name: str, path: Path) -> None:
        for attempt in range(1, self._attempts + 1):
            self._log(name, "begun", attempt=attempt)
            try:
                with self._folder.writing(name) as into:
                    record = self._pipeline.run(name, path, into)
            except (Unavailable, EngineError) as error:
                if attempt == self._attempts:
                    self._give_up(name, path, error, attempt)
                else:
                    time.sleep(_RETRY_SECONDS * 2 ** (attempt - 1))
            except RequestError as error:
                self._give_up(name, path, error, attempt)
                return
            else:
                facts = {"audio_seconds": record.duration, "redacted": record.redacted}
                self._log(name, "done", **facts)
                return

    def _give_up(self, name: str, path: Path, error: Exception, attempts: int) -> None:
        self.failed += 1
        self._folder.fail(name, path, str(error), attempts)
        self._log(name, "failed", attempts=attempts)
        click.echo(f"galley: {name}: {error}", err=True)

    def _log(self, name: str, status: str, **facts: Any) -> None:
        if self._audit is None:
            return
        line = {"event": "call", "call": name, "status": status, "redact": self._redact, **facts}
        self._audit.write(line)
        if not self._audit.usable:
            raise SettingsError("the audit log cannot be written; no more calls are processed")
