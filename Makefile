# Everything a developer does, each target setting up what it needs. `make` alone explains.
# Plain POSIX make features only, so that the old make of macOS can read it.

PYTHON ?= python3
ARGS ?=
PARALLEL ?= -n 2 --dist loadscope

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check --no-input

# A stamp is younger than what it was made from as long as nothing has to be installed.
DEV := $(VENV)/.installed-dev
BENCH := $(VENV)/.installed-bench

.DEFAULT_GOAL := help
.PHONY: help setup run demo test check format lock clean \
	bench bench-limiter bench-identity bench-spend bench-http bench-overload

help: ## show this list
	@echo "Targets (PYTHON=... chooses the Python, ARGS=... is passed on to the tool):"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: $(DEV) ## create .venv with everything that is needed to develop
	@echo "setup: ready, in $(VENV)"

run: $(DEV) ## start the service on 127.0.0.1:8080 with a demo organisation
	@$(BIN)/pricekeeper serve --demo $(ARGS)

demo: $(DEV) ## watch a whole day of a company's traffic in half a minute
	@$(BIN)/pricekeeper demo $(ARGS)

test: $(DEV) ## run the tests, on SQLite and on a DynamoDB engine
	@$(BIN)/python tools/engine.py fetch --best-effort
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

check: $(DEV) ## check format, lint, types and the strata of the imports
	@echo "check: format" && $(BIN)/ruff format --check . || \
		{ echo "check: run 'make format'"; exit 1; }
	@echo "check: lint" && $(BIN)/ruff check --quiet .
	@echo "check: types" && $(BIN)/mypy
	@echo "check: imports" && $(BIN)/lint-imports

bench: $(BENCH) ## measure the foundation, and print the table of ratios
	@$(BIN)/python tools/engine.py fetch
	@$(BIN)/python bench/foundation.py $(ARGS)

bench-limiter: $(BENCH) ## measure the limiter beside zae-limiter and limits
	@$(BIN)/python tools/engine.py fetch
	@$(BIN)/python bench/limiter.py $(ARGS)

bench-identity: $(BENCH) ## measure logins and token checks beside PyJWT
	@$(BIN)/python bench/identity.py $(ARGS)

bench-spend: $(BENCH) ## measure metering and selection beside the bare store
	@$(BIN)/python tools/engine.py fetch
	@$(BIN)/python bench/spend.py $(ARGS)
	@$(BIN)/python bench/selection.py $(ARGS)

bench-http: $(BENCH) ## measure the service beside a bare Starlette handler
	@$(BIN)/python tools/engine.py fetch
	@$(BIN)/python bench/rest.py $(ARGS)

bench-overload: $(BENCH) ## measure goodput and health under 1, 3 and 10 times the load
	@$(BIN)/python tools/engine.py fetch
	@$(BIN)/python bench/overload.py $(ARGS)

format: $(DEV) ## format, and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: ## choose the newest allowed versions and pin them in constraints.txt
	@echo "lock: resolving the newest versions that pyproject.toml allows"
	@set -e; fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$(PYTHON) -m venv "$$fresh/venv"; \
	pip="$$fresh/venv/bin/python -m pip -qq --disable-pip-version-check --no-input"; \
	$$pip install -e '.[dev,bench]'; \
	{ \
		echo "# The exact versions that development, CI and the benches use."; \
		echo "# Made by 'make lock' from pyproject.toml; not edited by hand."; \
		$$pip freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==[^ @]+$$'; \
	} > "$$fresh/constraints.txt"; \
	mv "$$fresh/constraints.txt" constraints.txt
	@echo "lock: $$(grep -c == constraints.txt) versions in constraints.txt"

clean: ## remove everything that make made; data/ and databases stay
	rm -rf $(VENV) .engine .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf .import_linter_cache build dist
	@find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@command -v $(PYTHON) > /dev/null || \
		{ echo "'$(PYTHON)' was not found: install Python 3.11 or newer, or say make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$$($(PYTHON) --version) is too old: this needs 3.11 or newer; say make PYTHON=python3.12, for example"; exit 1; }
	@echo "setup: creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo "setup: installing what development needs (about a minute, the first time)"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

$(BENCH): pyproject.toml constraints.txt | $(BIN)/python
	@echo "setup: installing what the benches need"
	@$(PIP) install -c constraints.txt -e '.[dev,bench]'
	@touch $(DEV) $@
