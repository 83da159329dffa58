"""One set of settings from four sources."""

import dataclasses
import math
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import yaml
from hypothesis import given

from galley.errors import SettingsError
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings
from galley.settings.fields import setting_types
from galley.types import SamplingDefaults
from tests.cli.any_settings import SOME_SETTINGS, VALUES


def load(
    tmp_path: Path,
    *,
    flags: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    file: str | None = None,
) -> Settings:
    path = None
    if file is not None:
        path = tmp_path / "settings.yaml"
        path.write_text(file, encoding="utf-8")
    return Settings.load(flags or {}, file=path, environ=environ or {})


def test_each_source_wins_over_the_one_below(tmp_path: Path) -> None:
    file, environ, flags = "max_running: 2", {"GALLEY_MAX_RUNNING": "3"}, {"max_running": 4}
    assert load(tmp_path).running_limit == 64
    assert load(tmp_path, file=file).max_running == 2
    assert load(tmp_path, file=file, environ=environ).max_running == 3
    assert load(tmp_path, file=file, environ=environ, flags=flags).max_running == 4


def test_sources_merge_setting_by_setting(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        file="port: 1\nhost: 0.0.0.0\nmodel: from-file",
        environ={"GALLEY_PORT": "2", "GALLEY_MODEL": "from-environment"},
        flags={"model": "from-flag"},
    )
    assert (settings.host, settings.port, settings.model) == ("0.0.0.0", 2, "from-flag")


def test_galley_yaml_of_the_working_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.load({}, environ={}).port == 8000
    (tmp_path / "galley.yaml").write_text("port: 9", encoding="utf-8")
    assert Settings.load({}, environ={}).port == 9


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.yaml does not exist"):
        Settings.load({}, file=tmp_path / "nowhere.yaml", environ={})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max-batch-tokens: 128", {"max_batch_tokens": 128}),
        ("prefix_cache: off", {"prefix_cache": False}),
        ("speculation: off", {"speculation": "off"}),
        ("drain_seconds: 5", {"drain_seconds": 5.0}),
        ("threads:", {"threads": None}),
        ("api_key: [one, two]", {"api_key": ("one", "two")}),
        ("api_key: one", {"api_key": ("one",)}),
        ("", {}),
        ("# only a comment", {}),
    ],
)
def test_yaml_values(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    settings = load(tmp_path, file=text)
    assert settings == Settings(**expected)


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("GALLEY_PREFIX_CACHE", "No", {"prefix_cache": False}),
        ("GALLEY_METRICS_WITHOUT_KEY", "1", {"metrics_without_key": True}),
        ("GALLEY_THREADS", "", {"threads": None}),
        ("GALLEY_THREADS", "2", {"threads": 2}),
        ("GALLEY_KV_MEMORY_FRACTION", "0.25", {"kv_memory_fraction": 0.25}),
        ("GALLEY_API_KEY", "one, two", {"api_key": ("one", "two")}),
        ("GALLEY_DTYPE", "bfloat16", {"dtype": "bfloat16"}),
        ("GALLEY_PORT", "tcp://10.0.0.1:8000", {}),  # a Kubernetes service link
        ("GALLEY_SERVICE_HOST", "10.0.0.1", {}),
    ],
)
def test_environment_values(
    tmp_path: Path, variable: str, text: str, expected: dict[str, Any]
) -> None:
    assert load(tmp_path, environ={variable: text}) == Settings(**expected)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("prot: 1", r"settings\.yaml: unknown setting 'prot'; known: .*port"),
        ("port: eight", r"settings\.yaml: port: expected a whole number, got 'eight'"),
        ("port: 8.5", r"port: expected a whole number, got 8\.5"),
        ("port: true", r"port: expected a whole number, got True"),
        ("port: .inf", r"port: expected a whole number, got inf"),
        ("drain_seconds: [1]", r"drain_seconds: expected a number, got \[1\]"),
        ("prefix_cache: maybe", r"prefix_cache: expected true or false, got 'maybe'"),
        ("dtype: int3", r"dtype: 'int3' is not one of auto, float32, bfloat16"),
        ("model: 7", r"model: expected text, got 7; quote it"),
        ("api_key: {a: 1}", r"api_key: expected a list of strings"),
        ("api_key: [1]", r"api_key: expected a list of strings"),
        ("- port", r"must contain a mapping"),
        ("port: [", r"not readable YAML"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, file: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, file=file)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("port: 1\nhost: a\nport: 2", r"line 3: 'port' stands here a second time"),
        ("max-queue: 1\nmax_queue: 2", r"line 2: 'max_queue' stands here a second time"),
        ("models: {a: x, b: {threads: 1, threads: 2}}", r"line 1: 'threads' stands here"),
        ("[" * 20_000, r"nests lists or mappings too deep"),
        ("port: " + "9" * 5000, r"not readable YAML"),
        ("a: &a [x]\nb: *a", r"line 2: the alias \*a"),
    ],
)
def test_duplicate_keys_and_endless_nesting_are_refused(
    tmp_path: Path, file: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, file=file)


def test_a_wrong_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="GALLEY_MAX_QUEUE: max_queue: expected a whole number"):
        load(tmp_path, environ={"GALLEY_MAX_QUEUE": "many"})


@pytest.mark.parametrize(
    "values",
    [
        {"port": 70000},
        {"port": -1},
        {"max_queue": -1},
        {"stored_responses": -1},
        {"stored_response_bytes": 0},
        {"drain_seconds": -0.1},
        {"drain_seconds": float("nan")},
        {"drain_seconds": float("inf")},
        {"max_body_bytes": 0},
        {"max_audio_bytes": 0},
        {"max_audio_seconds": 0.0},
        {"max_audio_seconds": math.nan},
        {"threads": 0},
        {"kv_cache_tokens": 0},
        {"max_model_len": -5},
        {"kv_memory_fraction": 0.0},
        {"kv_memory_fraction": float("nan")},
        {"kv_memory_fraction": 1.0},
        {"api_key": ("key", " ")},
        {"max_running": 600},
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(values))):
        Settings(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"port": 65536}, "port must be at least 0 and at most 65535, got 65536"),
        ({"max_queue": -1}, "max_queue must be at least 0, got -1"),
        ({"header_timeout": math.inf}, "header_timeout must be a finite number above 0, got inf"),
        ({"drain_seconds": -0.5}, "drain_seconds must be a finite number of at least 0, got -0.5"),
        (
            {"request_timeout": 1e6},
            "request_timeout must be above 0 and at most 86400, got 1000000.0",
        ),
        ({"state_interval": 24}, "state_interval must be a multiple of 16 and at least 16, got 24"),
        (
            {"price_per_hour": -1.0},
            "price_per_hour must be a finite number of at least 0, got -1.0",
        ),
        ({"max_running": "many"}, "max_running: expected a whole number, got 'many'"),
        ({"max_running": True}, "max_running: expected a whole number, got True"),
        ({"threads": 2.0}, "threads: expected a whole number, got 2.0"),
        ({"batching": "never"}, "batching: 'never' is not one of continuous, dynamic, static"),
    ],
    ids=str,
)
def test_an_error_says_which_values_are_allowed(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        Settings(**values)
    assert str(error.value) == message


def test_values_at_the_ends_of_their_ranges_are_accepted() -> None:
    Settings(port=0, max_queue=0, drain_seconds=0, max_audio_seconds=math.inf, price_per_hour=0)
    Settings(port=65535, request_timeout=86400, memory_limit_fraction=1, kv_memory_fraction=0.95)


def test_keys_stay_out_of_the_repr() -> None:
    assert "hush" not in repr(Settings(api_key=("hush",)))


def test_every_setting_is_described() -> None:
    for field in dataclasses.fields(Settings):
        assert field.metadata["group"], field.name
        assert field.metadata["help"], field.name


def test_the_round_trips_cover_every_setting() -> None:
    # Models by name are written differently in each source: see test_several_models.py.
    assert VALUES.keys() == setting_types(Settings).keys() - {"models"}
    assert setting_types(EngineSettings).keys() <= VALUES.keys()
    assert setting_types(Settings)["dtype"] == Literal["auto", "float32", "bfloat16"]


@given(values=SOME_SETTINGS)
def test_yaml_round_trip(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("settings") / "galley.yaml"
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    path.write_text(yaml.safe_dump(plain, allow_unicode=True), encoding="utf-8")
    assert Settings.load({}, file=path, environ={}) == Settings(**values)


def as_variable(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return "" if value is None else str(value)


@given(values=SOME_SETTINGS)
def test_environment_round_trip(values: dict[str, Any]) -> None:
    # An empty variable is not a list of keys: it is refused, see the test above.
    values = {name: value for name, value in values.items() if value != ()}
    environ = {f"GALLEY_{name.upper()}": as_variable(value) for name, value in values.items()}
    assert Settings.load({}, environ=environ) == Settings(**values)


def test_a_model_has_its_own_sampling_and_system_prompt(tmp_path: Path) -> None:
    file = (
        "sampling_defaults: {temperature: 0.7}\n"
        "models:\n"
        "  terse: {model: a, system_prompt: Be brief., sampling_defaults: {top_k: 4, max_tokens: 9}}\n"
        "  plain: b\n"
    )
    terse, plain = load(tmp_path, file=file).each_model()
    assert (terse.system_prompt, plain.system_prompt) == ("Be brief.", "")
    found = SamplingDefaults(temperature=0.3, top_p=0.9)
    assert terse.with_own(found) == SamplingDefaults(
        temperature=0.3, top_p=0.9, top_k=4, max_tokens=9
    )
    assert plain.with_own(found) == SamplingDefaults(temperature=0.7, top_p=0.9)
    one = load(tmp_path, environ={"GALLEY_SAMPLING_DEFAULTS": "top_k=5, temperature=1"})
    assert one.with_own(found).top_k == 5


def test_options_of_an_engine_are_json_or_a_mapping(tmp_path: Path) -> None:
    class Options(msgspec.Struct, forbid_unknown_fields=True):
        size: int = 1

    file = "models: {a: {model: x, engine: other, engine_options: {size: 3}}, b: y}"
    first, second = load(tmp_path, file=file).each_model()
    assert (first.options_as(Options).size, second.options_as(Options).size) == (3, 1)
    given = load(tmp_path, environ={"GALLEY_ENGINE_OPTIONS": '{"size": 4}'})
    assert given.options_as(Options).size == 4
    for wrong in ('{"sise": 4}', '{"size": "big"}'):
        with pytest.raises(SettingsError, match=r"engine_options of engine 'native'.*(sise|size)"):
            Settings(engine_options=wrong).options_as(Options)


@pytest.mark.parametrize("text", ["size=3", "[3]", '"size"', "{size: 3}", "{"])
def test_options_of_an_engine_that_are_no_object_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"engine_options.*JSON object"):
        Settings(engine_options=text)


@pytest.mark.parametrize(
    "entry",
    ["temperature", "heat=1", "temperature=hot", "temperature=-1", "top_k=1.5", "max_tokens=0"],
)
def test_default_sampling_that_cannot_be_is_named(entry: str) -> None:
    with pytest.raises(SettingsError, match=f"sampling_defaults.*{entry.partition('=')[0]}"):
        Settings(sampling_defaults=(entry,))
