"""``/admin``: the operators' API. ``auth.RequireKey`` admits admin keys alone."""

import time
from typing import TypedDict

from starlette.requests import Request
from starlette.responses import Response

from galley.errors import ModelError
from galley.gateway.rates import Bucket, LastMinute
from galley.gateway.registry import Registry
from galley.gateway.served import ServedModel
from galley.gateway.tenants import Account, Tenants
from galley.protocols.common.errors import ApiError
from galley.protocols.common.messages import Strict
from galley.protocols.http import body
from galley.protocols.http.json_answers import Json
from galley.protocols.http.openapi import Operation
from galley.types.engine_stats import ReleaseStatus, ReplicaStatus


class ReloadRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /admin/reload`: which model's files are to be loaded again."""

    model: str


class DrainRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /admin/drain`: the replica that is to leave, and its model."""

    model: str
    replica: str


class ReplicaState(TypedDict):
    """One of the engines that serve a model."""

    name: str
    state: str
    running: int
    waiting: int
    kv_usage: float
    restarts: int
    killed_starts: int
    version: str
    remote: bool
    pid: int | None
    release: str


class ReleaseState(TypedDict):
    """One of the releases among which a model's requests are divided."""

    name: str
    share: float
    replicas: int
    requests: int
    waiting: int


class ModelReplicas(TypedDict):
    """The replicas of a model."""

    model: str
    replicas: list[ReplicaState]
    releases: list[ReleaseState]


class ReplicaList(TypedDict):
    """The replicas of all models that are loaded."""

    models: list[ModelReplicas]


class LimitState(TypedDict):
    """One limit per minute: its size, None without one, what is left, and what the last minute used."""

    limit: int | None
    remaining: int | None
    last_minute: int


class TenantState(TypedDict):
    """A tenant's limits and current use."""

    name: str
    weight: float
    priority: int
    admin: bool
    max_context: int | None
    concurrency: int | None
    running: int
    requests: LimitState
    tokens: LimitState


class TenantList(TypedDict):
    """All tenants of the key file."""

    tenants: list[TenantState]


class Reloaded(TypedDict):
    """The reloaded model."""

    model: str


def routes(tenants: Tenants, models: Registry) -> list[Operation]:
    """Return the routes below ``/admin``."""

    async def reload(request: Request) -> Response:
        """Reload a model's files; respond when the new files are served, without any failed request."""
        parsed = await body.read(request, ReloadRequest, max_bytes=models.settings.max_body_bytes)
        try:
            await models.reload(parsed.model)
        except ModelError as error:
            message = f"{parsed.model} continues unchanged: {error}"
            raise ApiError(400, message, param="model", code="model_unusable") from error
        answer: Reloaded = {"model": parsed.model}
        return Json(answer)

    async def drain(request: Request) -> Response:
        """Have the other replicas of a model continue the requests of one; respond when it has ended."""
        parsed = await body.read(request, DrainRequest, max_bytes=models.settings.max_body_bytes)
        served = await models.find(parsed.model)
        await served.backend().engine.drain(parsed.replica)
        return Json(_replicas(served))

    async def list_replicas(_: Request) -> Response:
        """List the engines that serve each model."""
        answer: ReplicaList = {"models": [_replicas(one) for one in models if one.is_loaded]}
        return Json(answer)

    async def list_tenants(_: Request) -> Response:
        """List what each tenant may do and does now."""
        answer: TenantList = {"tenants": [_tenant(account) for account in tenants.accounts]}
        return Json(answer)

    return [
        Operation(
            "GET", "/admin/tenants", list_tenants, tag="operation", answers={200: TenantList}
        ),
        Operation(
            "POST",
            "/admin/reload",
            reload,
            tag="operation",
            body=ReloadRequest,
            answers={200: Reloaded},
            errors={404, 409},
        ),
        Operation(
            "GET", "/admin/replicas", list_replicas, tag="operation", answers={200: ReplicaList}
        ),
        Operation(
            "POST",
            "/admin/drain",
            drain,
            tag="operation",
            body=DrainRequest,
            answers={200: ModelReplicas},
            errors={404, 409},
        ),
    ]


def _replicas(served: ServedModel) -> ModelReplicas:
    return {
        "model": served.name,
        "replicas": [_replica(one) for one in served.replicas],
        "releases": [_release(one) for one in served.releases],
    }


def _replica(status: ReplicaStatus) -> ReplicaState:
    stats = status.stats
    return {
        "name": status.name,
        "state": status.state,
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_usage": stats.kv_usage,
        "restarts": status.restarts,
        "killed_starts": status.killed_starts,
        "version": status.version,
        "remote": status.remote,
        "pid": status.pid,
        "release": status.release,
    }


def _release(status: ReleaseStatus) -> ReleaseState:
    return {
        "name": status.name,
        "share": status.share,
        "replicas": status.replicas,
        "requests": status.requests,
        "waiting": status.waiting,
    }


def _tenant(account: Account) -> TenantState:
    tenant = account.tenant
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        "priority": tenant.priority,
        "admin": tenant.admin,
        "max_context": tenant.max_context,
        "concurrency": tenant.concurrency,
        "running": account.running,
        "requests": _limit(account.requests, account.recent_requests),
        "tokens": _limit(account.tokens, account.recent_tokens),
    }


def _limit(bucket: Bucket | None, recent: LastMinute) -> LimitState:
    return {
        "limit": None if bucket is None else bucket.limit,
        "remaining": None if bucket is None else max(0, int(bucket.left(time.monotonic()))),
        "last_minute": recent.total(),
    }
