"""Embeddings, rerank and score over HTTP, as clients request them."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import ollama
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from transformers import AutoTokenizer

from tests.checkpoints import make_checkpoint
from tests.embedding.checkpoints import make_model, pooled, scored
from tests.embedding.running import cosine
from tests.server.openapi import OF_VECTORS
from tests.server.recorded import RECORDINGS
from tests.server.refusals import error_of
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("server_protocols")

TEXTS = ["the router is broken", "my dog sat on the mat, too", "invoice?"]
QUERY = "what does a red light mean"
LONG = "the cat sat on the mat " * 40
PAIR: dict[str, Any] = {"query": "a", "documents": ["b"]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("models")
    made = {
        "vectors": make_model(root / "vectors", "bert", pooling="mean_tokens"),
        "ranks": make_model(root / "ranks", "bert", labels=1),
        "writes": root / "writes",
    }
    made["writes"].mkdir()
    make_checkpoint(made["writes"])
    prompts = '{"prompts": {"query": "mean: ", "document": ""}, "default_prompt_name": null}'
    (made["vectors"] / "config_sentence_transformers.json").write_text(prompts)
    return made


@pytest.fixture(scope="module")
def server(folders: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    models = [f"{name}={folder}" for name, folder in folders.items()]
    with Server(models, log, threads=1, kv_cache_tokens=4096, price_per_hour=1.0) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with server.openai() as sdk:
        yield sdk


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as plain:
        yield plain


def ids_of(folder: Any, *texts: str) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer(text)["input_ids"] for text in texts]


def test_openais_client_gets_the_vectors_of_texts_and_of_token_ids(
    client: OpenAI, folders: dict[str, Any]
) -> None:
    ids = ids_of(folders["vectors"], *TEXTS)
    truth = pooled(folders["vectors"], ids, "mean")
    by_default = client.embeddings.create(
        model="vectors", input=TEXTS
    )  # base64, decoded by the SDK
    as_floats = client.embeddings.create(model="vectors", input=TEXTS, encoding_format="float")
    of_ids = client.embeddings.create(model="vectors", input=ids, encoding_format="float")
    assert [one.index for one in as_floats.data] == [0, 1, 2]
    for a, b, c, expected in zip(by_default.data, as_floats.data, of_ids.data, truth, strict=True):
        assert a.embedding == b.embedding == c.embedding
        assert cosine(np.array(a.embedding, np.float32), expected) > 0.99999
    assert as_floats.usage.prompt_tokens == as_floats.usage.total_tokens == sum(map(len, ids))
    cut = client.embeddings.create(model="vectors", input=TEXTS[0], dimensions=7)
    whole = np.array(as_floats.data[0].embedding[:7])
    assert np.allclose(cut.data[0].embedding, whole / np.linalg.norm(whole), atol=1e-6)


def test_prompts_come_before_texts_by_their_name(client: OpenAI, http: httpx.Client) -> None:
    named = {"model": "vectors", "input": "cat", "input_type": "query"}
    [got] = http.post("/v1/embeddings", json=named).json()["data"]
    [whole] = client.embeddings.create(model="vectors", input="mean: cat").data
    assert got["embedding"] == whole.embedding
    refused = http.post("/v1/embeddings", json={**named, "input_type": "passage"})
    assert refused.status_code == 400
    assert "'query', 'document'" in error_of(refused)["message"]


def test_more_texts_than_the_queue_holds_are_answered_in_order(http: httpx.Client) -> None:
    """Large inputs too, which a text worker tokenizes."""
    texts = [f"line {i} " + "cat " * (i % 60) for i in range(700)]
    body = {"model": "vectors", "input": texts, "encoding_format": "base64"}
    data = http.post("/v1/embeddings", json=body).json()["data"]
    assert [one["index"] for one in data] == list(range(700))
    for i in (0, 333, 699):
        one = http.post("/v1/embeddings", json={**body, "input": texts[i]}).json()["data"][0]
        assert one["embedding"] == data[i]["embedding"]
        assert len(base64.b64decode(one["embedding"])) == 4 * 48


def test_a_long_text_is_refused_or_cut(
    client: OpenAI, http: httpx.Client, folders: dict[str, Any]
) -> None:
    with pytest.raises(BadRequestError, match=r"input\[1\] has 242 tokens; .* at most 130"):
        client.embeddings.create(model="vectors", input=["cat", LONG])
    for limit, tokens in ((-1, 130), (20, 20)):
        body = {"model": "vectors", "input": LONG, "truncate_prompt_tokens": limit}
        answer = http.post("/v1/embeddings", json=body).json()
        assert answer["usage"]["prompt_tokens"] == tokens
        tokenizer = AutoTokenizer.from_pretrained(folders["vectors"])
        ids = tokenizer(LONG, truncation=True, max_length=tokens)["input_ids"]
        [expected] = pooled(folders["vectors"], [ids], "mean")
        got = np.array(answer["data"][0]["embedding"], np.float32)
        assert cosine(got, expected) > 0.99999


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_rerank(path: str, http: httpx.Client, folders: dict[str, Any]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders["ranks"])
    documents = [*TEXTS, LONG]
    body = {"query": QUERY, "documents": documents, "top_n": 3, "return_documents": True}
    refused = http.post(path, json={**body, "model": "ranks"})
    assert refused.status_code == 400
    assert "documents[3] with the query has" in error_of(refused)["message"]
    answer = http.post(path, json={**body, "truncate_prompt_tokens": 60}).json()
    pairs = []
    for text in documents:
        both = tokenizer(
            QUERY, text, truncation="longest_first", max_length=60, return_token_type_ids=True
        )
        pairs.append((both["input_ids"], both["token_type_ids"].index(1)))
    truth = scored(folders["ranks"], pairs)
    best = sorted(range(4), key=lambda i: -truth[i])[:3]
    assert [one["index"] for one in answer["results"]] == best
    for one in answer["results"]:
        assert one["relevance_score"] == pytest.approx(truth[one["index"]], abs=2e-5)
        assert one["document"] == {"text": documents[one["index"]]}
    assert answer["model"] == "ranks"
    assert answer["usage"]["total_tokens"] == sum(len(ids) for ids, _ in pairs)
    assert answer["usage"]["cost"] > 0


def scores_of(http: httpx.Client, documents: list[Any], **fields: Any) -> list[float]:
    """Return the scores in the order of the documents."""
    body = {"model": "ranks", "query": QUERY, "documents": documents, **fields}
    answer = http.post("/v1/rerank", json=body)
    assert answer.status_code == 200, answer.text
    results = sorted(answer.json()["results"], key=lambda one: one["index"])
    return [one["relevance_score"] for one in results]


def test_documents_are_objects_with_fields_that_are_ranked(http: httpx.Client) -> None:
    documents = [
        {"id": i, "title": f"line {i}", "text": text, "paid": True} for i, text in enumerate(TEXTS)
    ]
    assert scores_of(http, documents) == scores_of(http, TEXTS)
    titles = [f"line {i}" for i in range(3)]
    assert scores_of(http, documents, rank_fields=["title"]) == scores_of(http, titles)
    both = [f"paid: true\ntitle: {title}" for title in titles]
    wanted = ["paid", "owner", "title"]
    assert scores_of(http, documents, rank_fields=wanted) == scores_of(http, both)
    named = scores_of(http, [TEXTS[0]], rank_fields=["title", "text"])
    assert named == scores_of(http, [f"text: {TEXTS[0]}"])
    body = {"query": QUERY, "documents": [documents[1], "cat"], "return_documents": True}
    results = http.post("/v1/rerank", json=body).json()["results"]
    given = {one["index"]: one["document"] for one in results}
    assert given == {0: documents[1], 1: {"text": "cat"}}


def test_documents_are_cut_as_cohere_and_jina_cut_them(
    http: httpx.Client, folders: dict[str, Any]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders["ranks"])
    [ids] = ids_of(folders["ranks"], LONG)
    nine = tokenizer.decode(ids[1:10])
    for documents in ([LONG, "cat"], [LONG] * 60):  # a text worker tokenizes the latter
        cut = [nine if text == LONG else text for text in documents]
        assert scores_of(http, documents, max_tokens_per_doc=9) == scores_of(http, cut)
    whole = scores_of(http, [LONG], truncate_prompt_tokens=-1)
    assert scores_of(http, [LONG], truncation=True) == whole
    assert scores_of(http, [LONG], max_chunks_per_doc=1) == whole
    twice = scores_of(http, [LONG], max_tokens_per_doc=80, truncate_prompt_tokens=40)
    assert twice == scores_of(http, [LONG], truncate_prompt_tokens=40) != whole


def test_answers_match_coheres(http: httpx.Client) -> None:
    for path, version in (("/v1/rerank", "1"), ("/v2/rerank", "2"), ("/rerank", "1")):
        answer = http.post(path, json={"query": QUERY, "documents": TEXTS}).json()
        tokens = {"input_tokens": answer["usage"]["prompt_tokens"], "output_tokens": 0}
        assert answer["meta"] == {
            "api_version": {"version": version},
            "billed_units": tokens,
            "tokens": tokens,
        }


def test_score_is_a_rerankers_or_the_cosine_of_vectors(http: httpx.Client, client: OpenAI) -> None:
    ranked = http.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS}).json()["results"]
    body = {"text_1": QUERY, "text_2": TEXTS}
    scores = http.post("/v1/score", json=body).json()["data"]  # the reranker, as no model is named
    assert {one["index"]: one["relevance_score"] for one in ranked} == {
        one["index"]: one["score"] for one in scores
    }
    cosines = http.post("/v1/score", json={**body, "model": "vectors"}).json()["data"]
    first, *others = client.embeddings.create(model="vectors", input=[QUERY, *TEXTS]).data
    for one, other in zip(cosines, others, strict=True):
        assert one["score"] == pytest.approx(np.dot(first.embedding, other.embedding), abs=1e-6)


def test_ollamas_client(server: Server, client: OpenAI) -> None:
    vectors = client.embeddings.create(model="vectors", input=TEXTS).data
    embedder = ollama.Client(host=server.url)
    answer = embedder.embed(model="vectors:latest", input=TEXTS)
    assert [list(v) for v in answer.embeddings] == [one.embedding for one in vectors]
    assert answer.prompt_eval_count
    assert len(embedder.embed(model="vectors", input=LONG).embeddings) == 1  # truncated, by default
    with pytest.raises(ollama.ResponseError, match="truncate"):
        embedder.embed(model="vectors", input=LONG, truncate=False)
    assert embedder.show("vectors").capabilities == ["embedding"]


def test_langchains_embeddings_by_ollamas_route(http: httpx.Client, client: OpenAI) -> None:
    sent = json.loads((RECORDINGS / "langchain-ollama.json").read_text())["requests"]
    [body] = [request["body"] for request in sent if request["path"] == "/api/embed"]
    vectors = client.embeddings.create(model="vectors", input=body["input"]).data
    answer = http.post("/api/embed", json={**body, "model": "vectors"})
    assert answer.json()["embeddings"] == [one.embedding for one in vectors], answer.text
    assert "warnings" not in answer.json()
    options = {**body["options"], "temperature": 0.5, "num_ctx": 10**6, "wings": 2}
    answer = http.post("/api/embed", json={**body, "model": "vectors", "options": options})
    assert answer.json()["warnings"] == ["unknown options, ignored: 'options.wings'"]
    refused = http.post("/api/embed", json={"model": "vectors", "options": {"top_k": "x"}})
    assert refused.status_code == 400
    assert "options.top_k" in refused.json()["error"]
    with ollama.Client(host=str(http.base_url)) as older:
        assert older.embeddings("vectors", body["input"][0]).embedding == vectors[0].embedding
    empty = http.post("/api/embeddings", json={"model": "vectors", "options": options})
    assert empty.json()["embedding"] == []
    assert "options.wings" in empty.json()["warnings"][0]
    unloaded = http.post("/api/embed", json={"model": "vectors", "keep_alive": 0})
    assert unloaded.json()["embeddings"] == []


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/embeddings", {"model": "ranks", "input": "a"}, "cannot embed; it can rerank"),
        ("/v1/embeddings", {"model": "writes", "input": "a"}, "cannot embed"),
        ("/v1/rerank", {"model": "vectors", "query": "a", "documents": ["b"]}, "cannot rerank"),
        ("/v1/completions", {"model": "vectors", "prompt": "a"}, "cannot generate"),
        ("/v1/score", {"model": "writes", "text_1": "a", "text_2": "b"}, "cannot rerank or embed"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1 has 2 texts"),
        ("/v1/embeddings", {"input": []}, "input is empty"),
        ("/v1/embeddings", {"input": ["a", ""]}, r"input[1] is empty"),
        ("/v1/embeddings", {"input": [5, 10**6]}, "token id 1000000"),
        ("/v1/embeddings", {"input": ["a", 5]}, "not a mixture"),
        ("/v1/embeddings", {"input": "a", "dimensions": 49}, "dimensions is 49"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 131}, "1 to 130"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 2}, "leaves no text"),
        ("/v1/embeddings", {"input": "a", "pooling": "cls"}, "pooling"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        (
            "/v1/rerank",
            {**PAIR, "documents": ["b", {"id": "c"}]},
            "documents[1] has no field 'text'",
        ),
        ("/v1/rerank", {**PAIR, "rank_fields": ["title"]}, "documents[0] has no field 'title'"),
        (
            "/v1/rerank",
            {**PAIR, "rank_fields": ["text", "text"]},
            "rank_fields has a duplicate name",
        ),
        ("/v1/rerank", {**PAIR, "documents": [{"text": ["b"]}]}, "documents[0].text is ranked"),
        ("/v1/rerank", {**PAIR, "max_chunks_per_doc": 10}, "max_chunks_per_doc is 10"),
        ("/v1/rerank", {**PAIR, "max_tokens_per_doc": 0}, "max_tokens_per_doc"),
        (
            "/v1/rerank",
            {**PAIR, "truncation": False, "max_chunks_per_doc": 1},
            "truncation is false",
        ),
        ("/v1/rerank", {**PAIR, "documents": [LONG], "truncation": False}, "at most 130"),
        ("/v1/rerank", {**PAIR, "relevant_spans": {"mode": "enabled"}}, "relevant_spans"),
    ],
)
def test_refusals(path: str, body: dict[str, Any], message: str, http: httpx.Client) -> None:
    refused = http.post(path, json=body)
    assert refused.status_code == 400
    assert message in error_of(refused)["message"]


GOOD: dict[str, dict[str, Any]] = {
    "embeddings": {"model": "vectors", "input": ["a", "b"], "encoding_format": "base64"},
    "embed": {"model": "vectors", "input": ["a", "b"]},
    "rerank": {"query": "a", "documents": ["b", {"text": "c", "id": 5}], "return_documents": True},
    "score": {"text_1": "a", "text_2": ["b", "c"]},
}


@pytest.mark.parametrize("operation", OF_VECTORS, ids=lambda operation: operation.label)
def test_answers_are_as_documented(operation: Any, http: httpx.Client) -> None:
    good = {"model": "vectors", "prompt": "a"}  # as in the older of Ollama's two routes
    if operation.path != "/api/embeddings":
        good = GOOD[operation.path.rpartition("/")[2]]
    answer = http.post(operation.path, json=good)
    assert answer.status_code == 200
    operation.validate_response(answer)


def test_unknown_models_are_404(client: OpenAI) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        client.embeddings.create(model="other", input="a")


def test_requests_are_counted(server: Server, http: httpx.Client) -> None:
    before = server.metrics("vectors")
    http.post("/v1/embeddings", json={"model": "vectors", "input": TEXTS})
    after = server.metrics("vectors")
    grown = {key for key in after if after[key] > before.get(key, 0)}
    assert "galley_prompt_tokens_total" in grown
    assert any("/v1/embeddings" in key and "stop" in key for key in grown), sorted(grown)
