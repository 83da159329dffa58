"""The deployment of gateways: each supervises a ``galley serve`` process and lists the replicas for it.

The process knows nothing of Ray: it follows a file (:mod:`galley.cluster.members`). While Ray's controller
is away, gateways continue with the replicas that they have.
"""

import asyncio
import logging
from typing import Any, Final

import msgspec
from ray import serve
from ray.serve.handle import DeploymentHandle

from galley.cluster.members import Members, Release, write_members
from galley.cluster.on_ray import directory
from galley.cluster.on_ray.plan import Plan, PlannedRelease
from galley.cluster.on_ray.serve_process import UNHEALTHY_STARTS, ServeProcess
from galley.cluster.on_ray.specs import GatewaySpec
from galley.errors import EngineFailed
from galley.observe import logs

log = logging.getLogger("galley.cluster")

_FOLLOW_SECONDS: Final = 0.2
_FIGURES_SECONDS: Final = 0.5
_HANDLE_SECONDS: Final = 1.0
Key = tuple[str, str]
"""Application and deployment."""


class Gateway:
    """A gateway, for Ray Serve."""

    async def __init__(self, spec: dict[str, Any], *releases: object) -> None:  # type: ignore[misc]
        """Prepare the process, which starts with the first plan (:meth:`reconfigure`).

        Args:
            spec: see :class:`GatewaySpec`.
            releases: handles of releases in the gateway's own application, which thereby has them.
        """
        logs.start("text", "warning")
        logging.getLogger("galley").setLevel(logging.INFO)
        given = msgspec.convert(spec, GatewaySpec)
        self._plan = Plan(models={})
        self._members: Members = {}
        self._figures: dict[str, Any] = {}
        self._handles: dict[Key, DeploymentHandle] = {}
        self._waking: dict[Key, Any] = {}
        self._process = ServeProcess(given.host, given.ports, drain_seconds=given.drain_seconds)
        self._replica_file = self._process.folder / "replicas.json"
        self._settings = {
            **given.settings,
            "replicas": 0,
            "replica_file": str(self._replica_file),
        }
        self._tasks: list[asyncio.Task[None]] = []
        self._supervising: asyncio.Task[None] | None = None

    async def reconfigure(self, plan: dict[str, Any]) -> None:
        """Serve these models and releases from now on; see :class:`Plan`.

        Raises:
            EngineFailed: the process does not start.
        """
        self._plan = msgspec.convert(plan, Plan)
        self._list_replicas()
        models = {name: model.settings for name, model in self._plan.models.items()}
        await self._process.configure({**self._settings, "models": models})
        if not self._tasks:
            self._supervising = asyncio.create_task(self._process.supervise())
            loops = (self._follow(), self._connect(), self._watch())
            self._tasks = [asyncio.create_task(one) for one in loops]
            try:
                await self._process.listening()
            except BaseException:
                await self._end()
                raise

    def record_routing_stats(self) -> dict[str, Any]:
        """Return where the gateway listens and what it knows, for ``galley cluster status``."""
        return {"url": self._process.url, "figures": self._figures}

    async def check_health(self) -> None:
        """Raise EngineFailed if the process fails to start again and again."""
        if self._process.failed_starts >= UNHEALTHY_STARTS:
            raise EngineFailed(f"galley serve fails to start: {self._process.last_words}")

    async def __call__(self, _: object) -> str:
        """Answer requests that come by Ray Serve's own proxy."""
        return f"Galley's gateways do not use Ray Serve's proxy. This one listens on {self._process.url}\n"

    async def __del__(self) -> None:
        """Let the process complete its requests, and end; Ray Serve calls it once."""
        await self._end()

    async def _end(self) -> None:
        if self._supervising is not None:
            self._supervising.cancel()
        # Until it has ended, it needs the list of replicas that can continue its streams.
        await self._process.close()
        for task in self._tasks:
            task.cancel()

    async def _follow(self) -> None:
        while True:
            try:
                self._list_replicas()
            except OSError as error:
                log.error("the file of replicas cannot be written: %s", error)
            await asyncio.sleep(_FOLLOW_SECONDS)

    def _list_replicas(self) -> None:
        """Write the file of replicas, if it is not what the plan and the routers say now."""
        members = {
            name: {one.name: self._release(one) for one in model.releases}
            for name, model in self._plan.models.items()
        }
        if members != self._members:
            write_members(self._replica_file, members)
            self._members = members

    def _release(self, planned: PlannedRelease) -> Release:
        found = directory.replicas_of(*_key(planned)).values()
        addresses = sorted({one["address"] for one in found if one.get("address")})
        return Release(planned.share, addresses, planned.sleeps, planned.alias)

    async def _connect(self) -> None:
        """Get a handle to each release: Ray then sends its router in this process the list of replicas."""
        while True:
            planned = {_key(one) for model in self._plan.models.values() for one in model.releases}
            for key in planned - self._handles.keys():
                app, deployment = key
                try:
                    handle = await asyncio.to_thread(serve.get_deployment_handle, deployment, app)
                    self._handles[key] = handle.options(method_name="wake")
                except Exception as error:
                    log.info("%s is not deployed yet: %s", app, error)
            self._handles = {key: one for key, one in self._handles.items() if key in planned}
            await asyncio.sleep(_HANDLE_SECONDS)

    async def _watch(self) -> None:
        """Read the figures of the process, and wake releases that requests wait for."""
        while True:
            found = await asyncio.to_thread(self._process.figures)
            if found is not None:
                self._figures = found
                for name, model in self._plan.models.items():
                    self._wake(model.releases, found.get(name))
            await asyncio.sleep(_FIGURES_SECONDS)

    def _wake(self, releases: list[PlannedRelease], figures: dict[str, Any] | None) -> None:
        """Have Ray Serve start a replica of each release that is needed and has none.

        A model that this gateway has never seen ready needs one of its first release.
        """
        for index, planned in enumerate(releases):
            key = _key(planned)
            needed = (
                not index if figures is None else bool(figures.get(planned.name, {}).get("waiting"))
            )
            call = self._waking.get(key)
            if call is not None and call.done():
                del self._waking[key]
            can = planned.sleeps and key in self._handles and not directory.replicas_of(*key)
            if call is None and needed and can:
                log.info("waking %s", planned.name)
                self._waking[key] = asyncio.create_task(self._call(self._handles[key]))

    async def _call(self, handle: DeploymentHandle) -> None:
        try:
            await handle.remote()
        except Exception as error:
            log.warning("a replica could not be started: %s", error)


def _key(planned: PlannedRelease) -> Key:
    return planned.app or serve.get_replica_context().app_name, planned.deployment
