"""The Open Inference Protocol over gRPC, with Triton's own clients and messages."""

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.missing import without
from tests.runtimes import onnx_files
from tests.runtimes.values import generated, same
from tests.server.serving import Server, until
from tests.thorough import examples

pytestmark = pytest.mark.xdist_group("open_inference_grpc")

EXTENSIONS = ["binary_tensor_data", "model_repository", "generate", "schedule_policy"]
ROUND_TRIPS = examples(1000)
INFER = "/inference.GRPCInferenceService/ModelInfer"


def address(server: Server) -> str:
    return "127.0.0.1:" + server.wait_for_log(r"gRPC listens on \S+:(\d+)")[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    onnx_files.perceptron(folder / "fraud.onnx")
    onnx_files.identities(folder / "typed.onnx", without="FP16")
    onnx_files.identities(folder / "types.onnx")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    models = [f"{name}={folder / name}.onnx" for name in ("fraud", "typed", "types")]
    with Server(models, log, threads=1, grpc_port=0, max_body_bytes=2**20) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(address(server)) as client:
        yield client


@pytest.fixture
def channel(server: Server) -> Iterator[Any]:
    with grpc.insecure_channel(address(server)) as channel:
        yield channel


def given(name: str, array: Any) -> Any:
    made = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array)


X = np.linspace(0, 1, 60, dtype=np.float32).reshape(2, 30)


def test_the_server_and_its_models_are_described(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("fraud")
    assert client.is_model_ready("fraud", "1")
    assert not client.is_model_ready("other")
    assert not client.is_model_ready("fraud", "2")
    about = client.get_server_metadata()
    assert (about.name, list(about.extensions)) == ("galley", EXTENSIONS)
    described = client.get_model_metadata("fraud", "1")
    assert (described.name, described.platform) == ("fraud", "onnxruntime_onnx")
    assert list(described.versions) == ["1"]
    [x] = described.inputs
    assert (x.name, x.datatype, list(x.shape)) == ("x", "FP32", [-1, 30])
    assert [(y.name, y.datatype, list(y.shape)) for y in described.outputs] == [
        ("y", "FP32", [-1, 3]),
        ("label", "INT64", [-1]),
    ]


def test_outputs_are_the_librarys_own(client: Any, folder: Path) -> None:
    y, label = onnxruntime.InferenceSession(folder / "fraud.onnx").run(None, {"x": X})
    result = client.infer("fraud", [given("x", X)], request_id="r-1")
    assert result.as_numpy("y").tobytes() == y.tobytes()
    assert (result.as_numpy("label") == label).all()
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("r-1", "fraud", "1")
    chosen = client.infer("fraud", [given("x", X)], outputs=[triton.InferRequestedOutput("label")])
    assert chosen.as_numpy("y") is None
    assert (chosen.as_numpy("label") == label).all()


@pytest.mark.parametrize("name", list(onnx_files.TYPES))
def test_every_type_returns_as_it_was_sent(client: Any, name: str) -> None:
    rng = random.Random(name)
    for seed in range(ROUND_TRIPS // (2 * len(onnx_files.TYPES)) + 1):
        array = generated(name, (rng.randrange(1, 5), rng.randrange(1, 9)), seed)
        others = [
            given(f"in_{other}", generated(other, (array.shape[0], 1), seed))
            for other in onnx_files.TYPES
            if other != name
        ]
        result = client.infer("types", [*others, given(f"in_{name}", array)])
        assert same(result.as_numpy(f"out_{name}"), array), (name, array)


FIELDS = {
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
    **dict.fromkeys(["INT8", "INT16", "INT32"], "int_contents"),
    **dict.fromkeys(["UINT8", "UINT16", "UINT32"], "uint_contents"),
}


def typed(name: str, datatype: str, array: Any, field: str | None = None) -> Any:
    tensor = service_pb2.ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=array.shape
    )
    getattr(tensor.contents, field or FIELDS[datatype]).extend(array.ravel().tolist())
    return tensor


def test_elements_may_be_in_typed_fields(channel: Any) -> None:
    arrays = {name: generated(name, (2, 3), 5) for name in onnx_files.TYPES if name != "FP16"}
    request = service_pb2.ModelInferRequest(
        model_name="typed",
        inputs=[typed(f"in_{name}", name, array) for name, array in arrays.items()],
    )
    response = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    result = triton.InferResult(response)
    for name, array in arrays.items():
        assert same(result.as_numpy(f"out_{name}"), array), name


@pytest.mark.parametrize(
    ("inputs", "raw", "says"),
    [
        ([typed("x", "FP32", X[:, :29])], [], "has shape [2, 29]; it takes [-1, 30]"),
        ([typed("x", "FP32", X, "fp64_contents")], [], "in fp64_contents, not in fp32_contents"),
        ([typed("x", "FP16", X, "fp32_contents")], [], "'FP16' of input 'x' has no field in contents"),
        ([typed("x", "BF16", X, "fp32_contents")], [], "'BF16' of input 'x' is unknown"),
        ([typed("x", "INT8", X + 300, "fp32_contents")], [], "in fp32_contents, not in int_contents"),
        ([typed("x", "INT8", np.full((1, 2), 200))], [], "out of the range of INT8"),
        ([typed("x", "FP32", X)], [b"1234"], "both contents and raw_input_contents"),
        ([typed("x", "FP32", X)], [b"1234", b""], "raw_input_contents has 2 tensors and inputs has 1"),
        ([], [], "input 'x' is missing"),
    ],
)  # fmt: skip
def test_errors_name_what_is_wrong(channel: Any, inputs: Any, raw: Any, says: str) -> None:
    request = service_pb2.ModelInferRequest(
        model_name="fraud", inputs=inputs, raw_input_contents=raw
    )
    with pytest.raises(grpc.RpcError) as error:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert says in error.value.details()


def test_unsupported_methods_are_refused_and_named(client: Any) -> None:
    x = [given("x", X)]
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: client.infer("other", x), "NOT_FOUND.*does not exist"),
        (lambda: client.infer("fraud", x, model_version="2"), "NOT_FOUND.*has no version '2'"),
        (lambda: client.infer("fraud", x, sequence_id=7), "INVALID_ARGUMENT.*parameters.sequence"),
        (lambda: client.infer("fraud", x, parameters={"color": "red"}), "parameters.color"),
        (lambda: client.infer("fraud", x, timeout=1), "DEADLINE_EXCEEDED.*deadline"),
        (lambda: client.get_model_config("fraud"), "UNIMPLEMENTED.*ModelConfig is not supported"),
        (
            lambda: client.register_system_shared_memory("region", "/key", 8),
            "UNIMPLEMENTED.*SystemSharedMemoryRegister is not supported",
        ),
    ]
    for call, says in cases:
        with pytest.raises(InferenceServerException, match=says):
            call()
    shared = triton.InferInput("x", [2, 30], "FP32")
    shared.set_shared_memory("region", 240)
    with pytest.raises(InferenceServerException, match="shared_memory"):
        client.infer("fraud", [shared])


def test_asynchronous_clients_and_streams(server: Server, client: Any) -> None:
    async def run() -> list[Any]:
        async with triton_aio.InferenceServerClient(address(server)) as aio:
            assert await aio.is_model_ready("fraud")
            return await asyncio.gather(*(aio.infer("fraud", [given("x", X)]) for _ in range(64)))

    first, *others = asyncio.run(run())
    assert all(same(one.as_numpy("y"), first.as_numpy("y")) for one in others)
    answers: list[Any] = []
    client.start_stream(lambda result, error: answers.append(error or result))
    client.async_stream_infer("fraud", [given("x", X)], request_id="a")
    client.async_stream_infer("fraud", [given("x", X[:, :3])], request_id="b")
    client.async_stream_infer("fraud", [given("x", X)], request_id="c")
    until(lambda: len(answers) == 3)
    client.stop_stream()
    assert "has shape [2, 3]" in str(answers[1])
    assert [answers[i].get_response().id for i in (0, 2)] == ["a", "c"]


def test_bytes_that_are_no_messages(client: Any, channel: Any) -> None:
    call = channel.unary_unary(INFER)
    rng = random.Random(0)
    whole = service_pb2.ModelInferRequest(
        model_name="fraud", id="r", inputs=[typed("x", "FP32", X)]
    ).SerializeToString()
    codes = set()
    for _ in range(examples(2000)):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            call(bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.5 else data))
            codes.add("OK")
        except grpc.RpcError as error:
            codes.add(error.code().name if error.details() else "no details")
    assert codes <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND"}, codes
    assert client.is_server_live()


def test_messages_over_the_limit(channel: Any, client: Any) -> None:
    """This includes a request that is small on the wire."""
    call = channel.unary_unary(INFER)
    for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
        with pytest.raises(grpc.RpcError) as error:
            call(bytes(8 * 2**20), compression=compression)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, compression
    assert client.is_server_live()
    result = client.infer("fraud", [given("x", X)], compression_algorithm="gzip")
    assert result.as_numpy("y").shape == (2, 3)


def test_calls_are_batched_counted_and_logged(server: Server, client: Any) -> None:
    before = server.metrics("fraud")
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda _: client.infer("fraud", [given("x", X)]), range(100)))
    assert all(one.as_numpy("y").shape == (2, 3) for one in results)
    duration = "galley_request_duration_seconds_count{endpoint=/v2/models/infer}"
    after = server.metrics("fraud")
    assert after[duration] - before[duration] == 100
    client.infer("fraud", [given("x", X)], headers={"x-request-id": "traced-1"})
    server.wait_for_log(r"POST /v2/models/\{model:path\}/infer 200 .*id=traced-1 .*rows=2")


def test_a_killed_engine_is_replaced_and_calls_are_answered(server: Server, client: Any) -> None:
    pid = server.engine("fraud")
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(client.infer, "fraud", [given("x", X)]) for _ in range(40)]
        pid.kill()
        assert all(one.result().as_numpy("y").shape == (2, 3) for one in answers)


def test_keys_and_drain(folder: Path, tmp_path: Path) -> None:
    model = folder / "fraud.onnx"
    with Server(model, tmp_path / "log", threads=1, grpc_port=0, api_key="k1") as server:
        with triton.InferenceServerClient(address(server)) as client:
            assert client.is_server_ready()
            for headers in (None, {"authorization": "Bearer k2"}):
                with pytest.raises(InferenceServerException, match=r"UNAUTHENTICATED.*API key"):
                    client.infer("fraud", [given("x", X)], headers=headers)
                with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
                    client.get_model_metadata("fraud", headers=headers)
            headers = {"authorization": "Bearer k1"}
            result = client.infer("fraud", [given("x", X)], headers=headers)
            assert result.as_numpy("y").shape == (2, 3)
        assert server.stop() == 0


class Silent:
    """The messages of a call that never sends one, until it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        self.closed.wait(60)
        yield from ()


BODY = 2**20
KEY = (("authorization", "Bearer k1"),)


@pytest.fixture(scope="module")
def narrow(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server with a key, which receives one message at a time, and has one stream."""
    limits: dict[str, Any] = {
        "max_body_bytes": BODY,
        "max_unfinished_body_bytes": 2 * BODY,
        "body_timeout": 1.0,
        "min_body_rate": BODY,
    }
    log = tmp_path_factory.mktemp("narrow") / "log"
    with Server(folder / "fraud.onnx", log, threads=1, grpc_port=0, api_key="k1", **limits) as one:
        yield one


@pytest.mark.parametrize(
    "method",
    ["ModelInfer", "ModelStreamInfer", "ModelMetadata", "RepositoryIndex", "ServerMetadata"],
)
def test_no_message_is_awaited_without_a_key(narrow: Server, method: str) -> None:
    """More callers than messages are received at a time get their answer before they send anything."""
    silent = Silent()
    with grpc.insecure_channel(address(narrow)) as channel:
        call = channel.stream_stream(f"/inference.GRPCInferenceService/{method}")
        for key in (None, (("authorization", "Bearer k2"),), (("x-api-key", ""),)):
            for _ in range(3):
                with pytest.raises(grpc.RpcError, match="API key") as error:
                    list(call(iter(silent), metadata=key, timeout=20))
                assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
        silent.closed.set()
        # The message of a caller with a key is received.
        infer = channel.unary_unary(INFER)
        with pytest.raises(grpc.RpcError, match="not a ModelInferRequest"):
            infer(b"\xff", metadata=KEY)


@pytest.mark.parametrize("key", [None, KEY])
def test_probes_do_not_wait(narrow: Server, key: Any) -> None:
    silent = Silent()
    with grpc.insecure_channel(address(narrow)) as channel:
        for name in ("ServerLive", "ServerReady"):
            call = channel.stream_unary(f"/inference.GRPCInferenceService/{name}")
            answer = call(iter(silent), metadata=key, timeout=20)
            assert answer == b"\x08\x01"  # true
        silent.closed.set()


def test_large_messages_without_a_key_are_refused(narrow: Server) -> None:
    with triton.InferenceServerClient(address(narrow)) as client:
        large = given("x", np.zeros((BODY // 200, 30), np.float32))
        for _ in range(10):
            with pytest.raises(
                InferenceServerException, match=r"UNAUTHENTICATED.*API key required"
            ):
                client.infer("fraud", [large])
        headers = {"authorization": "Bearer k1"}
        assert client.infer("fraud", [large], headers=headers).as_numpy("y").shape[1] == 3
    narrow.wait_for_log(r"POST /v2/models/\{model:path\}/infer 401|infer 401")


def test_messages_being_received_have_a_limit(narrow: Server) -> None:
    silent = [Silent() for _ in range(8)]
    with grpc.insecure_channel(address(narrow)) as channel:
        infer = channel.stream_unary(INFER)
        errors = []
        for call in [infer.future(iter(one), metadata=KEY) for one in silent]:
            with pytest.raises(grpc.RpcError) as error:
                call.result(timeout=20)
            errors.append((error.value.code().name, error.value.details()))
        # One was being received at a time, others waited in vain.
        says = {"UNAVAILABLE": "--max-unfinished-body-bytes", "CANCELLED": "--body-timeout"}
        assert {code for code, _ in errors} == set(says)
        assert all(says[code] in details for code, details in errors)
        with pytest.raises(grpc.RpcError, match="no message"):
            infer(iter([]), metadata=KEY)
        with triton.InferenceServerClient(address(narrow)) as client:
            result = client.infer("fraud", [given("x", X)], headers=dict(KEY))
            assert result.as_numpy("y").shape == (2, 3)
        for each in silent:
            each.closed.set()


def test_open_streams_have_a_limit(narrow: Server) -> None:
    """A stream that only waits has its place, and takes none of other calls."""
    request = service_pb2.ModelInferRequest(model_name="fraud", inputs=[typed("x", "FP32", X)])
    silent = Silent()

    def messages() -> Iterator[Any]:
        yield request
        yield from silent

    with grpc.insecure_channel(address(narrow)) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        first = stub.ModelStreamInfer(messages(), metadata=KEY)
        assert next(first).infer_response.model_name == "fraud"
        with pytest.raises(grpc.RpcError, match="--max-unfinished-body-bytes") as error:
            list(stub.ModelStreamInfer(iter([request]), metadata=KEY, timeout=20))
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert stub.ModelInfer(request, metadata=KEY).model_name == "fraud"
        first.cancel()

        def reopened() -> bool:
            try:
                again = list(stub.ModelStreamInfer(iter([request] * 3), metadata=KEY))
            except grpc.RpcError:
                return False
            assert [one.infer_response.model_name for one in again] == ["fraud"] * 3
            return True

        until(reopened)
        silent.closed.set()


def test_a_port_that_is_taken_ends_the_start(folder: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Server(folder / "fraud.onnx", tmp_path / "log", grpc_port=port)
        says = f"ended with 1: (?s:.*)cannot listen on 127.0.0.1:{port} for gRPC"
        with pytest.raises(AssertionError, match=says), server:
            pass


def test_without_grpcio_the_start_says_what_to_install(folder: Path, tmp_path: Path) -> None:
    server = Server(
        folder / "fraud.onnx", tmp_path / "log", environ=without(tmp_path, "grpc"), grpc_port=0
    )
    says = r"ended with 1: (?s:.*)grpc_port needs grpcio(?s:.*)galley-inference\[grpc\]"
    with pytest.raises(AssertionError, match=says), server:
        pass
