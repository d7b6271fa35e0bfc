# Everything a developer does, each target setting up what it needs. `make` alone explains.
# Plain POSIX make features only, so that the old make of macOS can read it.

PYTHON ?= python3
ARGS ?=
# Tests also wait, so two cores serve four workers.
PARALLEL ?= -n 4 --dist loadscope --no-loadscope-reorder
SUITE = -m "not slow"

# The tests start hundreds of processes, and each would compile all of us again.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check --no-input

# A stamp is younger than what it was made from as long as nothing must be installed.
RUN := $(VENV)/.installed-run
DEV := $(VENV)/.installed-dev
BENCH := $(VENV)/.installed-bench
AUDIT := $(VENV)/.installed-audit

# Everything that is installed is listed with its hash, so that nothing else can take its place. The
# lists are whole, so nothing is looked up beside them; what is imported is compiled then.
INSTALL := $(PIP) install --require-hashes --no-deps --no-compile -r requirements/build.txt
OURSELVES := install --no-deps --no-build-isolation -e .

.DEFAULT_GOAL := help
.PHONY: help setup run dashboard page-types screenshots demo test test-slow test-all test-stores test-clients check audit sbom format lock clean \
	walk size backtest simulate soak-client soak-processes soak-gateway bench bench-client bench-limiter bench-identity bench-spend bench-http bench-gateway bench-neighbours bench-authorizations bench-page bench-large bench-overload

help: ## show this list
	@echo "Targets (PYTHON=... chooses the Python, ARGS=... is passed on to the tool):"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: $(DEV) ## create .venv with all development tools
	@echo "setup: ready, in $(VENV)"

run: $(RUN) ## start the service on 127.0.0.1:8080 with a demo organisation
	@$(BIN)/python tools/dashboard.py build --best-effort || echo "page: going on without it"
	@$(BIN)/pricekeeper serve --demo $(ARGS)

dashboard: $(BIN)/python ## build the dashboard into the package, with npm
	@$(BIN)/python tools/dashboard.py build

page-types: $(DEV) ## write the types of the API's answers for the dashboard
	@$(BIN)/python tools/wire_types.py

screenshots: $(DEV) ## retake the pictures in docs/dashboard, in a real browser
	@$(BIN)/python tools/dashboard.py prepare
	@PRICEKEEPER_SCREENSHOTS=$(CURDIR)/docs/dashboard \
		$(BIN)/python -m pytest -q tests/page -k pictures
	@command -v pngquant > /dev/null && pngquant --force --strip --ext .png 128 docs/dashboard/*.png || \
		echo "screenshots: install pngquant to make them smaller"

demo: $(RUN) ## watch a simulated day of a company's traffic in 22 seconds
	@$(BIN)/pricekeeper demo $(ARGS)

test: $(DEV) ## run the quick tests: at most six minutes on two cores
	@$(BIN)/python tools/engine.py fetch --best-effort
	@$(BIN)/python tools/dashboard.py prepare --best-effort
	@$(BIN)/python -m pytest $(PARALLEL) $(SUITE) $(ARGS)

test-slow: $(DEV) ## run the others: all histories, browser, wheel, DynamoDB engines
	@$(MAKE) test SUITE='-m slow'

test-stores: $(DEV) ## run all tests on every store
	@EVERY_STORE=1 $(MAKE) test SUITE=

test-all: $(DEV) ## run all tests on every store, and judge 100,000 hostile bodies
	@EVERY_STORE=1 PRICEKEEPER_MASKED_BODIES=100000 $(MAKE) test SUITE=

test-clients: $(DEV) ## run real clients (langchain, strands, litellm ...); ARGS='--kind gateway'
	@$(BIN)/python tools/clients.py $(ARGS)

check: $(DEV) ## check format, lint, types, imports and plain words
	@echo "check: format" && $(BIN)/ruff format --check . || \
		{ echo "check: run 'make format'"; exit 1; }
	@echo "check: lint" && $(BIN)/ruff check --quiet .
	@echo "check: types" && $(BIN)/mypy
	@echo "check: imports" && $(BIN)/lint-imports
	@echo "check: words" && $(BIN)/python tools/plain.py
	@echo "check: dashboard" && $(BIN)/python tools/wire_types.py --check && \
		$(BIN)/python tools/dashboard.py check --best-effort

audit: $(AUDIT) ## look for known vulnerabilities in what is installed
	@$(BIN)/python tools/audit.py $(ARGS)

sbom: $(AUDIT) ## write the bill of materials of a deployment to dist/sbom.cdx.json
	@mkdir -p dist
	@PYTHONWARNINGS=ignore $(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application \
		--output-reproducible --of JSON -o dist/sbom.cdx.json requirements/deploy.txt
	@echo "sbom: dist/sbom.cdx.json"

walk: $(DEV) ## show the way of six requests through the modules
	@$(BIN)/python tools/walk.py $(ARGS)

size: $(DEV) ## count lines, modules, words, tests and hops, beside their aims
	@$(BIN)/python tools/size.py

soak-client: $(DEV) ## a thousand wrapped calls with kills and restarts; ARGS='--calls N --seed N'
	@$(BIN)/python tools/soak_client.py $(ARGS)

soak-processes: $(DEV) ## eight processes at five sessions for a minute; ARGS='--secs N'
	@$(BIN)/python tools/soak_processes.py $(ARGS)

soak-gateway: $(DEV) ## two thousand calls through the gateway with kills and failures; ARGS='--calls N --seed N --store dynamodb'
	@$(BIN)/python tools/soak_gateway.py $(ARGS)

backtest: $(DEV) ## how good forecasts are, beside a straight line; ARGS='--seeds N'
	@$(BIN)/python tools/backtest.py $(ARGS)

simulate: $(DEV) ## simulate a million histories of authorizations and of metering, for a night; ARGS='--histories N'
	@$(BIN)/python tools/simulate.py $(ARGS)

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

bench-authorizations: $(BENCH) ## measure authorize and capture beside a bare Starlette handler
	@$(BIN)/python bench/authorizations.py $(ARGS)

bench-gateway: $(BENCH) ## measure the gateway beside a plain relay; ARGS=--others: LiteLLM and Portkey, too
	@$(BIN)/python bench/gateway.py $(ARGS)

bench-neighbours: $(BENCH) ## measure the calls of one organisation while another one floods the gateway
	@$(BIN)/python bench/neighbours.py $(ARGS)

bench-client: $(BENCH) ## measure a wrapped boto3 client beside a bare one
	@$(BIN)/python bench/client.py $(ARGS)

bench-page: $(DEV) ## measure the dashboard: its size, and how soon it shows numbers
	@$(BIN)/python tools/dashboard.py prepare
	@$(BIN)/python -m pytest -q -s tests/page -k first | grep -v "^ok "

bench-large: $(BENCH) ## measure a store with two million records beside an empty one
	@$(BIN)/python bench/large.py $(ARGS)

bench-overload: $(BENCH) ## measure goodput and health under 1, 3 and 10 times the load
	@$(BIN)/python tools/engine.py fetch
	@$(BIN)/python bench/overload.py $(ARGS)

format: $(DEV) ## format, and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/python tools/dashboard.py format --best-effort

lock: ## choose the newest allowed versions and pin them, with hashes, in requirements/
	@echo "lock: resolving the newest versions that pyproject.toml allows"
	@set -e; fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$(PYTHON) -m venv "$$fresh/venv"; \
	"$$fresh/venv/bin/python" -m pip -qq --disable-pip-version-check --no-input install uv; \
	pin() { list=requirements/$$1.txt; shift; \
		"$$fresh/venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --upgrade \
			--generate-hashes --custom-compile-command "make lock" "$$@" -o $$list; \
		echo "lock: $$(grep -c == $$list) versions in $$list"; }; \
	pin bench pyproject.toml --extra dev --extra bench; \
	pin dev pyproject.toml --extra dev -c requirements/bench.txt; \
	pin deploy pyproject.toml --extra server --extra prices -c requirements/bench.txt; \
	pin run pyproject.toml --extra demo -c requirements/bench.txt; \
	pin build requirements/build.in -c requirements/bench.txt; \
	pin audit requirements/audit.in -c requirements/bench.txt

clean: ## remove everything that make made; data/ and databases stay
	rm -rf $(VENV) .clients .engine .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf .import_linter_cache build dist dashboard/node_modules dashboard/.built src/pricekeeper/http/page
	@find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@command -v $(PYTHON) > /dev/null || \
		{ echo "'$(PYTHON)' was not found: install Python 3.11 or newer, or say make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$$($(PYTHON) --version) is too old: this needs 3.11 or newer; say make PYTHON=python3.12, for example"; exit 1; }
	@echo "setup: creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "$(PYTHON) can't make a venv: install its venv package, python3-venv for example"; exit 1; }

# Each package is named as it comes, since a minute of silence looks like the end.
$(RUN): pyproject.toml requirements/build.txt requirements/run.txt | $(BIN)/python
	@echo "setup: installing what running needs, about 47 packages and 160 MB, the first time:"
	@rm -f $@.failed; { $(BIN)/python -m pip --disable-pip-version-check --no-input install \
		--require-hashes --no-deps --no-compile -r requirements/build.txt -r requirements/run.txt 2>&1 || \
		touch $@.failed; } | tee $(VENV)/setup.log | \
		while read -r what name rest; do case "$$what $$name" in \
			Collecting*) printf ' %s' "$${name%%[<>=!~;[]*}" ;; \
			Installing?collected) printf ' ...' ;; \
			ERROR:*) printf '\n%s %s %s' "$$what" "$$name" "$$rest" ;; \
		esac; done; echo
	@test ! -e $@.failed || { echo "setup: pip has failed; all that it said is in $(VENV)/setup.log"; exit 1; }
	@$(PIP) $(OURSELVES)
	@touch $@

$(DEV): pyproject.toml requirements/build.txt requirements/dev.txt | $(BIN)/python
	@echo "setup: installing what development needs (about a minute, the first time)"
	@$(INSTALL) -r requirements/dev.txt
	@$(PIP) $(OURSELVES)
	@touch $(RUN) $@

$(BENCH): pyproject.toml requirements/build.txt requirements/bench.txt | $(BIN)/python
	@echo "setup: installing what the benches need"
	@$(INSTALL) -r requirements/bench.txt
	@$(PIP) $(OURSELVES)
	@touch $(RUN) $(DEV) $@

$(AUDIT): requirements/audit.txt | $(BIN)/python
	@echo "setup: installing what the audit needs"
	@$(PIP) install --require-hashes --no-deps --no-compile -r requirements/audit.txt
	@touch $@
