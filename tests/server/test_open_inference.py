"""The Open Inference Protocol over HTTP, with Triton's own clients, on a server of ONNX models."""

import asyncio
import json
import random
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.runtimes import onnx_files
from tests.runtimes.values import generated, same
from tests.server.openapi import OF_TENSORS, OPERATIONS, check_answers
from tests.server.serving import Server, until
from tests.thorough import examples

pytestmark = pytest.mark.xdist_group("open_inference")

EXTENSIONS = ["binary_tensor_data", "model_repository", "generate", "schedule_policy"]
HEADER = "Inference-Header-Content-Length"
ROUND_TRIPS = examples(1000)
OF_OTHERS = re.compile("rerank|generate|repository/models")
"""Operations of text models, and of administrators."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    onnx_files.perceptron(folder / "fraud.onnx")
    onnx_files.lookup(folder / "lookup.onnx")
    for name in onnx_files.TYPES:
        onnx_files.identity(folder / f"{name}.onnx", name)
    onnx_files.identities(folder / "types.onnx")
    (folder / "detector").mkdir()
    onnx_files.sum_of_two(folder / "detector" / "model.onnx")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    models = [f"{name}={folder / name}.onnx" for name in ("fraud", "lookup", "types")]
    with Server([*models, f"detector={folder / 'detector'}"], log, threads=1) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        yield client


def given(name: str, array: Any, *, binary: bool) -> Any:
    made = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array, binary_data=binary)


def test_the_server_and_its_models_are_described(client: Any, server: Server) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("fraud")
    assert client.is_model_ready("fraud", "1")
    assert not client.is_model_ready("other")
    about = client.get_server_metadata()
    assert (about["name"], about["extensions"]) == ("galley", EXTENSIONS)
    assert client.get_model_metadata("fraud", "1") == {
        "name": "fraud",
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 30]}],
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [-1, 3]},
            {"name": "label", "datatype": "INT64", "shape": [-1]},
        ],
    }
    cards = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert {card["id"]: card["tasks"] for card in cards}["detector"] == ["predict"]


def test_the_start_and_the_list_of_models_have_the_memory(server: Server) -> None:
    server.wait_for_log(r"fraud: onnxruntime_onnx, batches of up to 64 rows")
    server.wait_for_log(r"total +[\d.]+ MiB  of [\d.]+ GiB available")
    models = {one["id"]: one for one in httpx.get(f"{server.url}/v1/models").json()["data"]}
    planned = server.metrics("fraud")
    parts = [
        planned[f"galley_planned_memory_bytes{{part={part}}}"] for part in ("weights", "buffers")
    ]
    assert models["fraud"]["memory"] == sum(parts)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("name", list(onnx_files.TYPES))
def test_every_type_returns_as_it_was_sent(client: Any, name: str, binary: bool) -> None:
    rng = random.Random(name)
    for seed in range(ROUND_TRIPS // (2 * len(onnx_files.TYPES)) + 1):
        array = generated(name, (rng.randrange(1, 5), rng.randrange(1, 9)), seed)
        others = [
            given(f"in_{other}", generated(other, (array.shape[0], 1), seed), binary=True)
            for other in onnx_files.TYPES
            if other != name
        ]
        wanted = triton.InferRequestedOutput(f"out_{name}", binary_data=binary)
        inputs = [*others, given(f"in_{name}", array, binary=binary)]
        result = client.infer("types", inputs, outputs=[wanted], request_id=f"r-{seed}")
        assert result.get_response()["id"] == f"r-{seed}"
        assert same(result.as_numpy(f"out_{name}"), array), (name, array)


def test_outputs_are_the_librarys_own(client: Any, folder: Path) -> None:
    x = generated("FP32", (7, 30), 1) / 1e38
    y, label = onnxruntime.InferenceSession(folder / "fraud.onnx").run(None, {"x": x})
    result = client.infer("fraud", [given("x", x, binary=True)])
    assert result.as_numpy("y").tobytes() == y.tobytes()
    assert (result.as_numpy("label") == label).all()


def test_plain_json_as_the_specification_has_it(server: Server) -> None:
    body = {
        "id": "42",
        "inputs": [
            {"name": "a", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2], [3, 4.5]]},
            {"name": "b", "shape": [2, 2], "datatype": "FP32", "data": [10, 20, 30, 40]},
        ],
        "outputs": [{"name": "sum"}],
    }
    answer = httpx.post(f"{server.url}/v2/models/detector/infer", json=body)
    assert answer.json() == {
        "model_name": "detector",
        "model_version": "1",
        "id": "42",
        "outputs": [
            {"name": "sum", "datatype": "FP32", "shape": [2, 2], "data": [11.0, 22.0, 33.0, 44.5]}
        ],
    }


def test_the_clients_compress_and_run_asynchronously(server: Server, client: Any) -> None:
    x = np.ones((2, 30), np.float32)
    for algorithm in ("gzip", "deflate"):
        result = client.infer(
            "fraud", [given("x", x, binary=True)], request_compression_algorithm=algorithm
        )
        assert result.as_numpy("y").shape == (2, 3)
    handles = [client.async_infer("fraud", [given("x", x, binary=True)]) for _ in range(3)]
    assert [handle.get_result().as_numpy("y").shape for handle in handles] == [(2, 3)] * 3

    async def run() -> list[Any]:
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{server.port}") as aio:
            assert await aio.is_server_ready()
            results = [aio.infer("fraud", [given("x", x, binary=True)]) for _ in range(16)]
            return [result.as_numpy("label").shape for result in await asyncio.gather(*results)]

    assert asyncio.run(run()) == [(2,)] * 16


def test_parameters_are_honored_or_refused_and_named(client: Any) -> None:
    x = [given("x", np.ones((1, 30), np.float32), binary=True)]
    assert client.infer("fraud", x, priority=2, timeout=10_000_000).as_numpy("y").shape == (1, 3)
    for options, says in (
        ({"sequence_id": 7, "sequence_start": True}, "parameters.sequence_id"),
        ({"parameters": {"color": "red"}}, "parameters.color"),
        ({"outputs": [triton.InferRequestedOutput("y", class_count=2)]}, "classification"),
        ({"timeout": 1}, "deadline"),
    ):
        with pytest.raises(InferenceServerException, match=says):
            client.infer("fraud", x, **options)
    shared = triton.InferInput("x", [1, 30], "FP32")
    shared.set_shared_memory("region", 120)
    with pytest.raises(InferenceServerException, match="shared_memory_region"):
        client.infer("fraud", [shared])


X = {"name": "x", "shape": [1, 30], "datatype": "FP32", "data": [0.5] * 30}
BYTES_OF_X = {k: v for k, v in X.items() if k != "data"} | {"parameters": {"binary_data_size": 120}}


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("fraud", {"inputs": []}, 400, "input 'x' is missing"),
        ("fraud", {"inputs": [X | {"name": "z"}]}, 400, "there is no input 'z'"),
        ("fraud", {"inputs": [X | {"datatype": "BF16"}]}, 400, "inputs[0].datatype is 'BF16'"),
        ("fraud", {"inputs": [X | {"datatype": "FP64"}]}, 400, "has data type FP64; it takes FP32"),
        ("fraud", {"inputs": [X | {"shape": [1, 29]}]}, 400, "has 30 values in data; its shape has 29"),
        ("fraud", {"inputs": [X | {"shape": [2, 15]}]}, 400, "has shape [2, 15]; it takes [-1, 30]"),
        ("fraud", {"inputs": [X | {"shape": [-1, 30]}]}, 400, "inputs[0].shape[0]: must be at least 0"),
        ("fraud", {"inputs": [X | {"data": ["a"] * 30}]}, 400, "of FP32 takes numbers in data"),
        ("fraud", {"inputs": [X | {"data": [[0.5] * 29, 1]}]}, 400, "array of arrays and other"),
        ("fraud", {"inputs": [X | {"data": [1e39] * 30}]}, 400, "out of the range of FP32"),
        ("fraud", {"inputs": [BYTES_OF_X]}, 400, "0 bytes follow the JSON object"),
        ("fraud", {"inputs": [X], "outputs": [{"name": "z"}]}, 400, "there is no output 'z'"),
        ("lookup", {"inputs": [{"name": "ids", "shape": [1, 1], "datatype": "INT64", "data": [9]}]},
         400, "out of data bounds"),
        ("other", {"inputs": [X]}, 404, "does not exist"),
        ("fraud/versions/2", {"inputs": [X]}, 404, "has no version '2'; it has version 1"),
    ],
)  # fmt: skip
def test_errors_name_what_is_wrong(
    server: Server, path: str, body: Any, status: int, says: str
) -> None:
    answer = httpx.post(f"{server.url}/v2/models/{path}/infer", json=body)
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    assert says in answer.json()["error"]


@pytest.mark.parametrize(
    ("length", "rest", "says"),
    [
        ("0", b"", "shape [1, 30] of FP32 has 120"),  # one tensor without JSON
        ("-3", b"", "it takes the length of the JSON object"),
        ("9" * 30, b"", "it takes the length of the JSON object"),
        (None, b"\0" * 119, "119 bytes follow the JSON object"),
        (None, b"\0" * 121, "121 bytes follow the JSON object"),
    ],
)
def test_binary_bodies_that_do_not_add_up(
    server: Server, length: str | None, rest: bytes, says: str
) -> None:
    head = json.dumps({"inputs": [BYTES_OF_X]}).encode()
    headers = {"Inference-Header-Content-Length": length or str(len(head))}
    headers["Content-Type"] = "application/octet-stream"
    url = f"{server.url}/v2/models/fraud/infer"
    answer = httpx.post(url, content=head + rest, headers=headers)
    assert answer.status_code == 400
    assert says in answer.json()["error"]


@pytest.mark.parametrize(
    "operation",
    [one for one in OPERATIONS if one.path.startswith("/v2") and not OF_OTHERS.search(one.path)],
    ids=lambda operation: operation.label,
)
def test_answers_are_as_documented(server: Server, operation: Any) -> None:
    check_answers(server, operation)
    body: Any = {"inputs": [X]} if operation in OF_TENSORS else None
    path = operation.path.replace("{model}", "fraud").replace("{version}", "1")
    answer = httpx.request(operation.method, server.url + path, json=body)
    assert answer.status_code == 200
    operation.validate_response(answer)


def test_numbers_that_json_lacks_need_binary_data(client: Any) -> None:
    inputs = [
        given(f"in_{name}", generated(name, (1, 1), 0), binary=True)
        for name in onnx_files.TYPES
        if name != "FP64"
    ]
    inputs.append(given("in_FP64", np.array([[np.nan]]), binary=True))
    with pytest.raises(InferenceServerException, match="'out_FP64' has values that are infinite"):
        client.infer("types", inputs, outputs=[triton.InferRequestedOutput("out_FP64", False)])
    result = client.infer("types", inputs, outputs=[triton.InferRequestedOutput("out_FP64")])
    assert np.isnan(result.as_numpy("out_FP64")).all()


def test_float16_as_json(server: Server) -> None:
    others = [
        {"name": f"in_{name}", "shape": [1, 0], "datatype": name, "data": []}
        for name in onnx_files.TYPES
        if name != "FP16"
    ]
    half = {"name": "in_FP16", "shape": [1, 2], "datatype": "FP16", "data": [1.5, -0.1]}
    body = {"inputs": [*others, half], "outputs": [{"name": "out_FP16"}]}
    answer = httpx.post(f"{server.url}/v2/models/types/infer", json=body)
    [output] = answer.json()["outputs"]
    assert output["data"] == [1.5, float(np.float16(-0.1))]


def test_concurrent_requests_are_batched_and_counted(server: Server) -> None:
    before = server.metrics("fraud")
    count = 200

    def ask(seed: int) -> bool:
        with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            x = np.full((1, 30), seed / count, np.float32)
            result = client.infer("fraud", [given("x", x, binary=True)])
            return bool(result.as_numpy("y").shape == (1, 3))

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(count)))
    after = server.metrics("fraud")

    def more(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    until(
        lambda: (
            server.metrics("fraud")["galley_batch_tokens_sum"]
            >= before["galley_batch_tokens_sum"] + count
        )
    )
    assert more("galley_batch_sequences_sum") == more("galley_batch_tokens_sum") == count
    assert more("galley_batch_sequences_count") < count
    duration = "galley_request_duration_seconds_count{endpoint=/v2/models/infer}"
    assert more(duration) == count


def test_large_tensors_are_shared_with_the_engine(server: Server, client: Any) -> None:
    """Some clients leave meanwhile, and the engine dies: no tensor is overwritten by another's."""
    rest = [given(f"in_{n}", generated(n, (4, 1), 0), binary=True) for n in onnx_files.TYPES]
    rest = [one for one in rest if one.name() != "in_FP32"]

    def ask(seed: int, last: int = 300_000) -> bool:
        x = np.random.default_rng(seed).random((4, 20_000 + seed * 1000 % last), np.float32)
        with triton.InferenceServerClient(f"127.0.0.1:{server.port}", network_timeout=60) as one:
            answer = one.infer("types", [*rest, given("in_FP32", x, binary=True)])
            return bool((answer.as_numpy("out_FP32") == x).all())

    def leave(seed: int) -> bool:
        x = given("in_FP32", np.full((4, 200_000), seed, np.float32), binary=True)
        body, length = triton.InferenceServerClient.generate_request_body([*rest, x])
        head = f"POST /v2/models/types/infer HTTP/1.1\r\nHost: localhost\r\n{HEADER}: {length}\r\n"
        head += f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head.encode() + body[: len(body) // (1 + seed % 2)])
        return True

    assert ask(0)
    engine = server.engine("types")
    assert "galley-tensors" in Path(f"/proc/{engine.pid}/maps").read_text()
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(leave if i % 4 == 3 else ask, i) for i in range(48)]
        until(lambda: sum(one.done() for one in answers) > 10)
        engine.kill()
        assert all(answer.result() for answer in answers)
    assert all(map(ask, range(4)))


def test_a_killed_engine_is_replaced_and_requests_are_answered(server: Server) -> None:
    x = np.ones((1, 30), np.float32)
    pid = server.engine("fraud")

    def ask(_: int) -> bool:
        with triton.InferenceServerClient(f"127.0.0.1:{server.port}", network_timeout=60) as client:
            return bool(client.infer("fraud", [given("x", x, binary=True)]).as_numpy("y").any())

    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, i) for i in range(40)]
        pid.kill()
        assert all(answer.result() for answer in answers)
    until(lambda: server.metrics("fraud")["galley_engine_restarts_total"] == 1)
