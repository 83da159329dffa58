"""How the server for ``ray.serve.llm`` passes streams on; ``test_on_ray`` has it in Ray."""

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from galley.errors import SettingsError

aiohttp = pytest.importorskip("aiohttp", reason="extra ray")
from aiohttp import web  # noqa: E402

from galley.cluster import ray_llm  # noqa: E402

STREAMS = 101
"""More than the connections that aiohttp has by default."""

LONG = f"data: {'é' * 2_000_000}\n\n"


class Server(ray_llm.GalleyServer):
    """A server without a process of its own."""

    def __init__(self, url: str) -> None:
        self._process = SimpleNamespace(own_url=url, last_words="")  # type: ignore[assignment]
        self._requests = 0

    def __del__(self) -> None:  # type: ignore[override]
        pass


def test_streams_of_any_number_and_length_leave_room_for_checks_of_health() -> None:
    asyncio.run(asyncio.wait_for(_case(), 60))


async def _case() -> None:
    go_on = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: first\n")
        await response.write(b"\ndata: [DO")
        await go_on.wait()
        await response.write(b"NE]\n\n")
        if (await request.json()).get("long"):
            await response.write(LONG.encode())
        return response

    async def health(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.add_routes([web.post("/v1/completions", stream), web.get("/health", health)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    server = Server(f"http://127.0.0.1:{port}")
    async with ray_llm._new_session("key") as server._session:
        streams: list[AsyncGenerator[Any, None]] = [
            server.completions({"long": not number}) for number in range(STREAMS)
        ]
        firsts = await asyncio.gather(*(anext(one) for one in streams))
        assert set(firsts) == {"data: first\n\n"}
        assert server.routing_stats() == {"requests": STREAMS}
        await asyncio.wait_for(server.check_health(), 10)
        go_on.set()
        rests = [[event async for event in one] for one in streams]
        assert rests[0] == ["data: [DONE]\n\n", LONG]
        assert rests[1:] == [["data: [DONE]\n\n"]] * (STREAMS - 1)
    await runner.cleanup()


def configuration(**engine_kwargs: Any) -> SimpleNamespace:
    loading = SimpleNamespace(model_id="org/tiny", model_source="/models/tiny")
    return SimpleNamespace(
        model_loading_config=loading, engine_kwargs=engine_kwargs, deployment_config=None
    )


def test_engine_kwargs_are_settings_and_decide_what_ray_reserves() -> None:
    config = configuration(**{"max-running": 8, "threads": 3, "device": "cuda"})
    settings = ray_llm.settings_of(config)
    assert settings == {
        "model": "/models/tiny",
        "served_model_name": "org/tiny",
        "max_running": 8,
        "threads": 3,
        "device": "cuda",
    }
    options = ray_llm.GalleyServer.get_deployment_options(config)
    assert options["ray_actor_options"] == {"num_cpus": 3, "num_gpus": 1}


@pytest.mark.parametrize("name", ["model", "served-model-name", "host", "port", "drain_seconds"])
def test_engine_kwargs_that_the_server_determines_are_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"determines {name.replace('-', '_')}"):
        ray_llm.settings_of(configuration(**{name: 1}))
