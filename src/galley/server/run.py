"""``galley serve``: bind, start, serve, drain, stop."""

import asyncio
import dataclasses
import gc
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from typing import Any, Final

import msgspec

from galley import __version__
from galley.errors import GalleyError, SettingsError
from galley.gateway.registry import Registry
from galley.gateway.tenants import Tenants
from galley.machine import give_memory_back, process_age, raise_open_files
from galley.observe import logs
from galley.observe.logs import say
from galley.observe.tracing import Tracing
from galley.server import tls
from galley.server.app import create_app
from galley.server.app_host import AppHost
from galley.server.auth import check_exposure
from galley.server.front_door import FrontDoor
from galley.server.grpc_door import GrpcDoor
from galley.server.http_protocol import HttpProtocol
from galley.server.ledger import ledger_lines
from galley.server.reread import changes
from galley.service.spawn import Spawner
from galley.settings.cache import check_used
from galley.settings.config import LOOPBACK_HOSTS, Settings
from galley.settings.values import address_text
from galley.types.model_info import Ledger

log = logging.getLogger("galley.server")

_BACKLOG: Final = 2048
_FLUSH_SECONDS: Final = 1.0
"""Seconds for connections to flush their output once no request is running any more."""

_HEADERS: Final = [
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
]
"""Headers of every response (OWASP's HTTP Headers cheat sheet)."""

_HTTPS_ONLY: Final = ("Strict-Transport-Security", "max-age=31536000")


def serve(
    settings: Settings,
    spawner: Spawner | None = None,
    reread: Callable[[], Settings] | None = None,
) -> int:
    """Serve until a signal or a failed start ends it; blocks.

    The first SIGTERM or SIGINT drains: new requests get 503, running ones have
    ``settings.drain_seconds``. The second stops at once. The engine processes end in every case.

    Args:
        settings: all of them.
        spawner: starts the engine processes, where some have been started already.
        reread: reads all sources of the settings again, for SIGHUP.

    Returns:
        The exit code: 0 after a drain, 1 if the server could not start, 128 + n if a second signal n
        cut the drain short.

    Raises:
        SettingsError: a public bind without a key, an unreadable key, key file or certificate, settings
            of the response cache that nothing uses, or too few files that may be open.
    """
    _configure_logging(settings)
    give_memory_back()
    # By default the collector runs so often that parsing a large body takes three times as long, which
    # delays all streams. Older generations are collected often, since the transports of closed connections,
    # which are cycles, would pile up there; what exists when the models are ready is not searched again.
    gc.set_threshold(5_000, 5, 10)
    check_used(settings, settings.cache_modes)
    tenants = Tenants.load(settings)
    check_exposure(settings, tenants)
    encryption = tls.context(settings)
    tracing = Tracing(settings.otlp_endpoint) if settings.otlp_endpoint else None
    raise_open_files()
    # From here on digests are enough.
    settings = dataclasses.replace(settings, api_key=(), api_key_file="", admin_key=())
    try:
        listener = bind(settings.host, settings.port)
    except OSError as error:
        _complain(
            f"cannot listen on {address_text(settings.host, settings.port)}: "
            f"{error.strerror or error}; "
            "choose another --host or --port (0 picks a free one)"
        )
        return 1
    with listener, closing(tracing) if tracing else nullcontext():
        run = _Run(Registry(settings, spawner), tenants, listener, encryption, tracing, reread)
        return _completed(run)


def _completed(run: "_Run") -> int:
    """Run the server once; return the exit code, which is 1 if there was no memory for a thread."""
    code: int | None = None
    try:
        with asyncio.Runner() as runner:
            code = runner.run(run.until_stopped())
    except RuntimeError as error:
        # The runner also starts a thread, to end those of its executor.
        if "start new thread" not in str(error):
            raise
        if code is None:
            _complain(f"cannot continue: {error}; allow more memory (container limit, ulimit -v)")
    return 1 if code is None else code


class _Run:
    """One life of the server, from the first accepted connection to the last."""

    def __init__(
        self,
        models: Registry,
        tenants: Tenants,
        listener: socket.socket,
        encryption: ssl.SSLContext | None,
        tracing: Tracing | None,
        reread: Callable[[], Settings] | None = None,
    ) -> None:
        self._settings = models.settings
        self._reread = reread
        self._url = _url(models.settings.host, listener, encryption)
        self._models = models
        self._tenants = tenants
        app = create_app(models, tenants=tenants, tracing=tracing)
        self._app = app
        self._grpc: GrpcDoor | None = None
        self._door = FrontDoor(
            models.settings,
            models=len(models.names),
            refused=lambda status: models.metrics.request_answered("unknown", status),
        )
        # A page of another origin that may not read a response may not embed it either.
        headers = [h for h in _HEADERS if not (models.settings.cors_origin and "Cross" in h[0])]
        self._host = AppHost(
            app,
            headers=[*headers, _HTTPS_ONLY] if encryption else headers,
            max_message_bytes=models.settings.max_body_bytes,
        )
        self._listener = listener
        self._encryption = encryption
        self._flush_seconds = _FLUSH_SECONDS
        self._signals: asyncio.Queue[int] = asyncio.Queue()
        self._reloads = asyncio.Event()

    async def until_stopped(self) -> int:
        """Start the models, serve, and drain; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signals.put_nowait, number)
        loop.add_signal_handler(signal.SIGHUP, self._reloads.set)
        reloading = asyncio.create_task(self._reload_on_signal())
        self._door.open(
            self._listener,
            lambda admission: HttpProtocol(self._host, self._door, admission),
            self._encryption,
        )
        signaled = asyncio.create_task(self._signals.get())
        try:
            code = await self._open_grpc()
            if code is None:
                code = await self._start(signaled)
            if code is None:
                await signaled
                code = await self._drain()
        finally:
            signaled.cancel()
            reloading.cancel()
            # Engines first, so that waiting clients get an error instead of a dropped connection.
            await self._models.close()
            if self._grpc is not None:
                await self._grpc.close(self._flush_seconds)
            await self._door.close(self._flush_seconds)
            await self._host.finished(self._flush_seconds)
        return code

    async def _open_grpc(self) -> int | None:
        """Listen for gRPC, if the settings say so; return an exit code if the server has to stop."""
        if self._settings.grpc_port is None:
            return None
        try:
            self._grpc = GrpcDoor(self._app, self._settings, self._tenants)
            port = await self._grpc.open()
        except (SettingsError, OSError) as error:
            _complain(str(error))
            return 1
        say(f"gRPC listens on {address_text(self._settings.host, port)}")
        return None

    async def _start(self, signaled: asyncio.Task[int]) -> int | None:
        """Start the models while HTTP already answers; return an exit code if the server has to stop."""
        say(f"Galley {__version__} listens on {self._url}")
        start = asyncio.create_task(self._models.start(self._print_phase, self._print_ledger))
        await asyncio.wait({start, signaled}, return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)
            return 0
        try:
            start.result()
        except GalleyError as error:
            _complain(f"cannot start: {error}")
            return 1
        except MemoryError:
            _complain("cannot start: out of memory; allow more (container limit, ulimit -v)")
            return 1
        gc.freeze()
        *others, last = [m.name for m in self._models if not m.on_request] or ["the server"]
        ready = f"{', '.join(others)} and {last} are ready" if others else f"{last} is ready"
        say(f"{ready} after {process_age():.2f} s: {self._url}/v1")
        if on_request := [model.name for model in self._models if model.on_request]:
            say(f"on request: {', '.join(on_request)}")
        return None

    async def _reload_on_signal(self) -> None:
        """Reread after each SIGHUP: the key file, the certificate, the settings, and changed models.

        Values that cannot be used are ignored, and the old ones stay in effect.
        """
        while True:
            await self._reloads.wait()
            self._reloads.clear()
            self._tenants.reload()
            await self._reread_certificate()
            changed = await self._reread_settings()
            for model in self._models.names:
                own = changed.get(model, {})
                try:
                    if not await self._models.reload(model, only_if_changed=True, settings=own):
                        log.info("%s: neither its files nor its settings have changed", model)
                except Exception as error:
                    log.error("%s continues unchanged: %s", model, error)

    async def _reread_certificate(self) -> None:
        """Use the certificate and key that are in their files now, for new connections."""
        try:
            renewed = await asyncio.to_thread(tls.context, self._settings)
            if renewed is None:
                return
            if self._grpc is not None:
                self._grpc.renew()
        except (SettingsError, OSError) as error:  # files may be replaced between two reads
            log.error("the certificate is unchanged: %s", error)
            return
        self._door.renew(renewed)

    async def _reread_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Apply the settings that can change while the server runs, and name the rest.

        Returns:
            Model name -> its engine settings that changed.
        """
        if self._reread is None:
            return {}
        try:
            wanted = await asyncio.to_thread(self._reread)
        except SettingsError as error:
            log.error("the settings are unchanged: %s", error)
            return {}
        served = {model.name: model.settings for model in self._models}
        found = changes(self._settings, served, wanted)
        if found.restart:
            log.warning("changed settings that need a restart: %s", ", ".join(found.restart))
        if found.live:
            self._settings = dataclasses.replace(self._settings, **found.live)
            logging.getLogger("galley").setLevel(self._settings.log_level.upper())
            log.info("changed at once: %s", ", ".join(f"{k}={v}" for k, v in found.live.items()))
        return found.models

    def _print_ledger(self, model: str, ledger: Ledger) -> None:
        say(
            "\n".join(ledger_lines(model, ledger)),
            model=model,
            ledger=msgspec.to_builtins(ledger),
        )

    def _print_phase(self, model: str, phase: str, seconds: float) -> None:
        if phase == "ready":
            return  # their total, which the last line of the start counts from the command's beginning
        names = self._models.names
        whose = f"{model:<{max(map(len, names))}} " if len(names) > 1 else ""
        say(
            f"  {whose}{phase:<10} {seconds:6.2f} s",
            model=model,
            phase=phase,
            seconds=round(seconds, 3),
        )

    async def _drain(self) -> int:
        """Let running requests finish, and engines write their files; return the exit code."""
        self._models.lifecycle.drain()
        self._door.drain()
        log.info("draining: running requests have %g s", self._settings.drain_seconds)
        again = asyncio.create_task(self._signals.get())
        finished = asyncio.create_task(self._finished())
        await asyncio.wait(
            {again, finished},
            timeout=self._settings.drain_seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
        code = 0
        if again.done():
            log.warning("second signal: stopping at once")
            self._flush_seconds = 0.0
            code = 128 + again.result()
        elif not finished.done():
            what = "aborting the remaining requests"
            if not self._models.lifecycle.in_flight:
                what = "packed weights are not stored, so the next start packs them again"
            log.warning("drain time is over; %s", what)
        again.cancel()
        finished.cancel()
        return code

    async def _finished(self) -> None:
        """Wait for the running requests, and for the files that speed up the next start."""
        await self._models.lifecycle.finished()
        if self._models.stores:
            log.info("waiting for packed weights to be stored; a second signal stops at once")
            await self._models.stored()


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket whose connections send at once.

    asyncio turns Nagle's algorithm off only for sockets that name their protocol, which
    ``create_server`` does not: a stream's first token would wait 40 ms for the client's delayed ACK.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _url(host: str, listener: socket.socket, encryption: ssl.SSLContext | None) -> str:
    scheme = "https" if encryption else "http"
    port = listener.getsockname()[1]
    name = host if host in LOOPBACK_HOSTS else socket.gethostname()
    return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"


def _complain(message: str) -> None:
    say(f"galley: {message}", sys.stderr)


def _configure_logging(settings: Settings) -> None:
    logs.start(settings.log_format, settings.log_level)
    # At level DEBUG websockets logs the text of messages.
    for chatty in ("asyncio", "httpx", "huggingface_hub", "websockets"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
