"""``/admin``: what operators ask and tell the server. ``auth.RequireKey`` lets admin keys alone in here."""

import time

from starlette.requests import Request
from starlette.responses import Response

from galley.api.errors import ApiError
from galley.api.responses import LimitState, Reloaded, TenantList, TenantState
from galley.api.schemas import ReloadRequest
from galley.errors import ModelError
from galley.gateway.rates import Bucket, LastMinute
from galley.gateway.registry import Registry
from galley.gateway.tenants import Account, Tenants
from galley.server import body
from galley.server.answers import Json
from galley.server.openapi import Operation


def routes(tenants: Tenants, models: Registry) -> list[Operation]:
    """``GET /admin/tenants`` and ``POST /admin/reload``."""

    async def reload(request: Request) -> Response:
        """Load a model's files again; answers when the new files are served, and no request has failed."""
        asked = await body.read(request, ReloadRequest, max_bytes=models.settings.max_body_bytes)
        try:
            await models.reload(asked.model)
        except ModelError as error:
            message = f"{asked.model} goes on as it is: {error}"
            raise ApiError(400, message, param="model", code="model_unusable") from error
        answer: Reloaded = {"model": asked.model}
        return Json(answer)

    async def list_tenants(_: Request) -> Response:
        """What each tenant may do and does now."""
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
    ]


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
