"""``galley cache`` on the answers of the response cache: list, show, remove."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from galley.cli.terminal import ago, in_bytes, table
from galley.errors import GalleyError, SettingsError

if TYPE_CHECKING:
    from galley.cache.entry import Entry
    from galley.cache.store import Kept, Selection, Store

T = TypeVar("T")

_KEY: Final = re.compile(r"[0-9a-f]{4,32}")
_KEY_SHOWN: Final = 16
_MOST_SHOWN: Final = 1000

Command = Callable[..., None]


def store_option(command: Command) -> Command:
    """Add the option that names the store."""
    return click.option(
        "--store",
        metavar="PLACE",
        help="file or Redis URL of the answers; default: what response_cache_store is set to",
    )(command)


def selection_options(command: Command) -> Command:
    """Add the options that select answers."""
    for name, meaning in (
        ("--tag", "answers with this tag (the request's x-galley-cache-tag)"),
        ("--tenant", "answers to this tenant"),
        ("--model", "answers of this model, or of an adapter: MODEL:ADAPTER"),
    ):
        command = click.option(name, help=meaning)(command)
    return command


def _key(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Check keys, or beginnings of keys, as answers name them in x-galley-cache-key."""
    for key in [value] if isinstance(value, str) else value:
        if not _KEY.fullmatch(key):
            raise click.BadParameter(
                f"{key!r} is not a key; give 4 to 32 of the hexadecimal digits in an answer's header "
                "x-galley-cache-key, or in galley cache list --answers"
            )
    return value


@click.command()
@click.argument("key", callback=_key)
@store_option
def show(key: str, store: str | None) -> None:
    """Show one stored answer: whose it is, how often it was used, and its text.

    KEY is the beginning of its key, which answers have in the header x-galley-cache-key.
    """
    from galley.cache.store import Selection

    found = _with_store(store, lambda opened: opened.find(Selection(keys=(key,)), 2)) or []
    if len(found) != 1:
        raise SettingsError(
            f"{'several answers begin' if found else 'no answer begins'} with the key {key}"
        )
    [kept] = found
    entry = kept.entry
    now = time.time()
    facts = {
        "key": entry.key.hex(),
        "kind": entry.kind,
        "model": entry.model,
        "tenant": entry.tenant or "-",
        "tag": entry.tag or "-",
        "stored": ago(now - entry.created),
        "expires": f"in {entry.expires - now:.0f} s",
        "hits": str(kept.hits),
        "last used": ago(now - kept.used),
        "size": in_bytes(kept.size),
        "tokens": f"{entry.prompt_tokens} prompt, {entry.output_tokens} generated",
        "engine time": f"{entry.engine_seconds:.3f} s",
    }
    for name, value in facts.items():
        click.echo(f"{name + ':':<13}{value}")
    if entry.question:
        click.echo(f"{'question:':<13}{_printable(entry.question)}")
    click.echo(_content(entry))


@click.command()
@click.argument("keys", nargs=-1, required=True, callback=_key)
@store_option
def rm(keys: tuple[str, ...], store: str | None) -> None:
    """Remove stored answers by their keys; servers that use the store then compute them again."""
    from galley.cache.store import Selection

    _remove(store, Selection(keys=keys))


@click.command()
@selection_options
@click.option("--all", "everything", is_flag=True, help="all answers")
@store_option
def purge(store: str | None, everything: bool, **chosen: Any) -> None:
    """Remove all stored answers that the options select."""
    from galley.cache.store import Selection

    if not everything and not any(chosen.values()):
        raise click.UsageError("select answers with --model, --tenant, --tag or --all")
    if everything and any(chosen.values()):
        raise click.UsageError(
            "--all and --model, --tenant or --tag exclude each other; give one of them"
        )
    _remove(store, Selection(**chosen))


def list_answers(store: str | None, **chosen: Any) -> None:
    """Print the selected answers, last used first."""
    from galley.cache.store import Selection

    selection = Selection(**chosen)
    found = _with_store(store, lambda opened: opened.find(selection, _MOST_SHOWN + 1)) or []
    if not found:
        click.echo("no answers are stored" + (" for these" if any(chosen.values()) else ""))
        return
    header = ("key", "kind", "model", "tenant", "tag", "hits", "size", "last used")
    click.echo(table(header, [_row(kept) for kept in found[:_MOST_SHOWN]], left=(0, 1, 2, 3, 4, 7)))
    if len(found) > _MOST_SHOWN:
        click.echo(f"and more: these are the {_MOST_SHOWN} that were last used")


def answers_summary() -> str | None:
    """Return a line about the answers in the default store; None if it is empty or cannot be read."""
    try:
        size = _with_store(None, lambda opened: opened.size())
    except GalleyError:
        return None
    if size is None or not size.entries:
        return None
    return f"{size.entries} answers, {in_bytes(size.bytes)} (galley cache list --answers)"


def _row(kept: "Kept") -> tuple[str, ...]:
    entry = kept.entry
    return (
        entry.key.hex()[:_KEY_SHOWN],
        entry.kind,
        entry.model,
        entry.tenant or "-",
        entry.tag or "-",
        str(kept.hits),
        in_bytes(kept.size),
        ago(time.time() - kept.used),
    )


def _content(entry: "Entry") -> str:
    """Return the answer's text; its token ids if the model's tokenizer is gone."""
    from galley.cache.entry import outputs_of, tokens_in
    from galley.text.tokenizer import Tokenizer

    if entry.kind != "text":
        return f"({entry.kind} of {len(entry.body)} bytes)"
    tokens = tokens_in(outputs_of(entry) or [])
    try:
        text = Tokenizer.load(Path(entry.folder)).decode(tokens)
    except (GalleyError, OSError):
        return f"tokens ({entry.folder} no longer has a tokenizer): {tokens}"
    return _printable(text)


def _printable(text: str) -> str:
    """Return a text without the control characters that terminals obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def _remove(place: str | None, selection: "Selection") -> None:
    removed = _with_store(place, lambda opened: opened.remove(selection)) or 0
    click.echo(f"removed {removed} answer{'' if removed == 1 else 's'}")


def _with_store(place: str | None, work: "Callable[[Store], Awaitable[T]]") -> T | None:
    """Return the result of ``work`` with the store; None if its file does not exist.

    Raises:
        SettingsError: the store cannot be used.
    """
    from galley.cache.redis_store import SCHEMES
    from galley.cache.response_cache import bounds_of, default_file, open_store
    from galley.cache.store import StoreError
    from galley.settings.config import Settings

    settings = Settings.load({})
    place = settings.response_cache_store if place is None else place
    if not place.startswith(SCHEMES) and not (Path(place) if place else default_file()).exists():
        return None

    async def run() -> T:
        store = open_store(place, bounds_of(settings))
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except StoreError as error:
        raise SettingsError(f"the answers cannot be read or removed: {error}") from error
