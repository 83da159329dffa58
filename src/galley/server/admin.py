"""``/admin``: what operators ask and tell the server. ``auth.RequireKey`` lets admin keys alone in here."""

import time

from starlette.requests import Request
from starlette.responses import Response

from galley.api.responses import LimitState, TenantList, TenantState
from galley.gateway.rates import Bucket, LastMinute
from galley.gateway.tenants import Account, Tenants
from galley.server.answers import Json
from galley.server.openapi import Operation


def routes(tenants: Tenants) -> list[Operation]:
    """``GET /admin/tenants``."""

    async def list_tenants(_: Request) -> Response:
        """What each tenant may do and does now."""
        answer: TenantList = {"tenants": [_tenant(account) for account in tenants.accounts]}
        return Json(answer)

    return [
        Operation("GET", "/admin/tenants", list_tenants, tag="operation", answers={200: TenantList})
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
