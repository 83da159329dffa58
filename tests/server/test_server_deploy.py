"""What ``deploy/`` says of Galley is true: metrics, settings, routes; checked with a real Prometheus."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import kubernetes_validate
import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from galley.cli.serve import serve
from galley.cluster.config import read_config
from galley.gateway.registry import Registry
from galley.gateway.tenants import Tenants
from galley.observe.resources import GPU_METRICS
from galley.protocols.http.openapi import document
from galley.server.app import create_app
from galley.settings.config import Settings
from galley.settings.fields import setting_types
from galley.speech.audio import Recording
from tests.observe.prometheus import DEPLOY, RULES, Prometheus, needed, promtool
from tests.server.serving import Server, until
from tests.speech.recordings import CALL, encode

pytestmark = pytest.mark.xdist_group("server_deploy")

DASHBOARD = json.loads((DEPLOY / "grafana/galley.json").read_text())
PANELS: dict[str, list[str]] = {
    panel["title"]: [target["expr"] for target in panel["targets"]]
    for panel in DASHBOARD["panels"]
    if panel["type"] != "row"
}
KUBERNETES = DEPLOY / "kubernetes"
CRDS = Path(__file__).parent / "crds"
OWN_SCHEMAS = {path.stem for path in CRDS.glob("*.json")}

LIMITED = "galley_tenant_rate_limited_total"
"""Nothing is rate-limited here, so it has no samples."""


@pytest.fixture(scope="module")
def server(
    model: Path, hearing: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(
        [f"chat={model}", f"speech={hearing}"],
        log,
        threads=1,
        kv_cache_tokens=16384,
        price_per_hour=1.5,
    ) as running:
        use(running)
        yield running


def use(server: Server) -> None:
    """Send a request of each kind."""
    plain = {"model": "chat", "prompt": "the cat sat", "max_tokens": 20, "ignore_eos": True}
    chat = {"model": "chat", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
    assert httpx.post(f"{server.url}/v1/completions", json=plain).status_code == 200
    assert httpx.post(f"{server.url}/v1/chat/completions", json=chat).status_code == 200
    sound = encode("wav", np.concatenate(list(Recording(CALL)))[32_000:80_000])
    form = {"model": "speech", "language": "en"}
    url = f"{server.url}/v1/audio/transcriptions"
    answer = httpx.post(url, data=form, files={"file": ("x.wav", sound)}, timeout=60)
    assert answer.status_code == 200
    assert answer.json()["usage"]["type"] == "duration"
    assert answer.json()["usage"]["cost"] > 0


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\b(?:galley|process)_\w+\b", text))


def test_rules_and_dashboard_name_metrics_that_exist(server: Server) -> None:
    page = httpx.get(f"{server.url}/metrics").text
    families = text_string_to_metric_families(page)
    there = {sample.name for family in families for sample in family.samples}
    used = names_in(RULES.read_text()) | names_in(json.dumps(PANELS))
    assert len(used) > 50
    assert used - there == GPU_METRICS.keys() | {LIMITED}
    assert f"# TYPE {LIMITED.removesuffix('_total')}" in page


def test_settings_and_routes_named_in_deploy_exist(server: Server) -> None:
    known = setting_types(Settings).keys()
    texts = {path: path.read_text() for path in DEPLOY.rglob("*") if path.is_file()}
    for path, text in texts.items():
        for variable in re.findall(r"\bGALLEY_([A-Z_]+)\b", text):
            assert variable.lower() in {*known, "cache_dir", "require_native"}, (path, variable)
    documents = [
        document
        for path, text in texts.items()
        if path.parent == KUBERNETES / "base"
        for document in yaml.safe_load_all(text)
    ]
    [settings] = [yaml.safe_load(d["data"]["galley.yaml"]) for d in documents if "data" in d]
    assert settings.keys() <= known
    [pod] = [d["spec"]["template"]["spec"] for d in documents if d["kind"] == "Deployment"]
    assert pod["terminationGracePeriodSeconds"] > settings["drain_seconds"]
    [container] = pod["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert httpx.get(server.url + container[probe]["httpGet"]["path"]).status_code == 200
    compose = yaml.safe_load(texts[DEPLOY / "compose.yaml"])
    for volume in (v for s in compose["services"].values() for v in s["volumes"]):
        source = volume.split(":")[0]
        assert (DEPLOY / source).exists() or source in compose["volumes"], source


def manifests() -> dict[Path, Any]:
    return {path: yaml.safe_load(path.read_text()) for path in KUBERNETES.rglob("*.yaml")}


def check_custom(manifest: dict[str, Any]) -> None:
    """Validate a custom resource against its definition, whose file names its source."""
    definition = json.loads((CRDS / f"{manifest['kind']}.json").read_text())
    assert manifest["apiVersion"] == definition["apiVersion"]
    jsonschema_rs.validator_for(closed(definition["schema"])).validate(manifest)


def closed(schema: Any) -> Any:
    """Refuse fields that a structural schema does not name, as ``kubectl --validate=strict`` does."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(one) for name, one in schema.items()}
    named = "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields")
    return made | {"additionalProperties": False} if named else made


def test_fields_that_a_custom_resource_does_not_have_are_found() -> None:
    paths = [path for path, manifest in manifests().items() if manifest["kind"] in OWN_SCHEMAS]
    assert {path.parent.name for path in paths} == {"gateway", "keda", "kserve", "llmisvc", "ray"}
    for path in paths:
        manifest = yaml.safe_load(path.read_text())
        manifest["spec"]["typo"] = 1
        with pytest.raises(jsonschema_rs.ValidationError, match="typo"):
            check_custom(manifest)


def test_manifests_are_of_kubernetes_own_schemas() -> None:
    checked = 0
    for path, manifest in manifests().items():
        group = manifest["apiVersion"].partition("/")[0]
        if manifest["kind"] in OWN_SCHEMAS:
            check_custom(manifest)
            checked += 1
        elif group not in ("kustomize.config.k8s.io", "monitoring.coreos.com"):
            kubernetes_validate.validate(manifest, "1.34", strict=True)
            checked += 1
        assert path.read_text().count("\n---\n") == 0, path
    assert checked >= 10
    wrong = manifests()[KUBERNETES / "base/deployment.yaml"]
    wrong["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError, match="imagee"):
        kubernetes_validate.validate(wrong, "1.34", strict=True)


@pytest.mark.parametrize(("tls", "tensor"), [(False, None), (True, 2)])
def test_arguments_of_kserves_presets_are_those_of_galley_serve(
    tls: bool, tensor: int | None
) -> None:
    read = manifests()
    whole, apart = (
        read[KUBERNETES / "llmisvc" / name]["spec"] for name in ("preset.yaml", "preset-apart.yaml")
    )
    pods = {"off": whole["template"], "decode": apart["template"]}
    pods["prefill"] = apart["prefill"]["template"]
    for role, pod in pods.items():
        [container] = pod["containers"]
        assert container["command"] == ["galley", "serve"]
        arguments = [rendered(one, tls, tensor) for one in container["args"]]
        found = serve.make_context("serve", arguments).params
        assert found["models"] == ("/mnt/models",)
        assert found["served_model_name"] == "name-of-model"
        assert bool(found["tls_cert"]) == bool(found["tls_key"]) == tls
        assert found["tensor_parallel"] == (tensor or 1)
        assert found["port"] == container["ports"][0]["containerPort"]
        variables = {one["name"]: one.get("value") for one in container["env"]}
        assert variables.get("GALLEY_ROLE", "off") == role


def rendered(text: str, tls: bool, tensor: int | None) -> str:
    """Render the few forms of Go's templates that the presets use."""
    text = text.replace("{{ .Spec.Model.Name }}", "name-of-model")
    text = re.sub(
        r"\{\{ if \.GlobalConfig\.EnableTLS \}\}(.*?)\{\{ end \}\}", r"\1" if tls else "", text
    )
    parallel = r"\{\{ if and [^}]*Tensor \}\}.*?\{\{ else \}\}(\d+)\{\{ end \}\}"
    text = re.sub(parallel, r"\1" if tensor is None else str(tensor), text)
    assert "{{" not in text
    return text


def test_a_ray_service_runs_the_application_of_a_valid_cluster_file(tmp_path: Path) -> None:
    read = manifests()
    spec = read[KUBERNETES / "ray/ray-service.yaml"]["spec"]
    [application] = yaml.safe_load(spec["serveConfigV2"])["applications"]
    assert application["import_path"] == "galley.cluster:app"
    mount = "/etc/galley"
    groups = spec["rayClusterConfig"]
    for group in (groups["headGroupSpec"], *groups["workerGroupSpecs"]):
        [container] = group["template"]["spec"]["containers"]
        assert mount in [one["mountPath"] for one in container["volumeMounts"]]
    file = Path(application["args"]["config"])
    assert str(file.parent) == mount
    data = read[KUBERNETES / "ray/cluster.yaml"]["data"]
    (tmp_path / file.name).write_text(data[file.name])
    read_config(str(tmp_path / file.name))


def test_every_manifest_is_a_resource_of_its_kustomization() -> None:
    read = manifests()
    folders = {path.parent for path in read}
    for folder in folders:
        kustomization = read[folder / "kustomization.yaml"]
        others = {path.name for path in read if path.parent == folder} - {"kustomization.yaml"}
        assert others <= set(kustomization["resources"]), folder
        for name in (*kustomization["resources"], *kustomization.get("components", ())):
            target = (folder / name).resolve()
            assert target in folders or target in read, (folder, name)


def test_the_image_must_be_set_and_a_claim_of_one_node_is_not_rolled() -> None:
    read = manifests()
    deployment = read[KUBERNETES / "base/deployment.yaml"]["spec"]
    [container] = deployment["template"]["spec"]["containers"]
    [image] = read[KUBERNETES / "overlays/example/kustomization.yaml"]["images"]
    assert container["image"] == image["name"]
    assert image["newName"] != image["name"]
    claim = read[KUBERNETES / "base/claim.yaml"]["spec"]
    assert claim["accessModes"] == ["ReadWriteOnce"]
    assert deployment["strategy"]["type"] == "Recreate"
    # The component replaces a volume by its position in the list; that volume must be the claim.
    assert deployment["template"]["spec"]["volumes"][1]["persistentVolumeClaim"]


def test_alerts_and_panels_count_the_routes_of_every_protocol() -> None:
    page = document(create_app(Registry(Settings()), tenants=Tenants({})).routes)
    requested = {
        path
        for path, operations in page["paths"].items()
        for operation in operations.values()
        if path != "/v2"  # the server's metadata
        and not {"operation", "models", "tokens"} & set(operation["tags"])
    }
    assert {"/v1/chat/completions", "/v1/messages", "/v2/rerank", "/api/chat"} <= requested
    for text in (RULES.read_text(), "\n".join(e for exprs in PANELS.values() for e in exprs)):
        selectors = re.findall(r'galley_request_outcomes_total\{endpoint=~"([^"]+)"', text)
        assert selectors
        for selector in selectors:
            assert all(re.fullmatch(selector, path) for path in requested)
            assert not any(re.fullmatch(selector, path) for path in ("/health", "/metrics", "/"))


def test_promtool_accepts_rules_and_configuration() -> None:
    for arguments in (
        ("check", "rules", str(RULES)),
        ("check", "config", str(RULES.parent / "prometheus.yml")),
        ("test", "rules", str(RULES.parent / "alerts_test.yml")),
    ):
        answer = promtool(*arguments)
        assert answer.returncode == 0, answer.stdout + answer.stderr


def test_each_alert_has_a_run_that_provokes_it() -> None:
    rules = yaml.safe_load(RULES.read_text())
    alerts = {r["alert"] for g in rules["groups"] for r in g["rules"] if "alert" in r}
    runs = yaml.safe_load((RULES.parent / "alerts_test.yml").read_text())["tests"]
    provoked: set[str] = set()
    spared: set[str] = set()
    for case in (case for run in runs for case in run["promql_expr_test"]):
        name = re.findall(r'alertname="(\w+)"', case["expr"])[0]
        (provoked if case["exp_samples"] else spared).add(name)
    assert provoked == spared == alerts


def test_each_panel_shows_what_a_real_prometheus_scraped(server: Server, tmp_path: Path) -> None:
    needed("prometheus")
    with Prometheus(tmp_path, server.port, RULES.read_text()) as prometheus:
        until(lambda: prometheus.query('up{job="galley"} == 1'))
        for _ in range(3):
            use(server)

        def empty() -> list[Any]:
            return [
                (title, expr)
                for title, exprs in PANELS.items()
                for expr in exprs
                if not prometheus.query(
                    expr.replace("$__rate_interval", "20s").replace("$model", ".*")
                )
            ]

        without_samples = GPU_METRICS.keys() | {LIMITED}
        until(lambda: all(names_in(expr) <= without_samples for _, expr in empty()))
        assert len(PANELS) > 30
        assert prometheus.firing() == set()
