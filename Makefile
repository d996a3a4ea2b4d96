# Two commands suffice: `make run` and `make test`. Both set the environment up first, which takes minutes once and nothing later.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
REFERENCES := .venv-references
PEERS := .venv-peers
# a file's tests stay together, for they share what is set up once; the long files begin first (tests/conftest.py)
# four on two cores, for many tests wait more than they compute
PYTEST := $(BIN)/pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder
# hundreds of processes are started: each would compile every module again
unexport PYTHONDONTWRITEBYTECODE
ARGS ?=
SET_APART := slow or interpreter or postgres or redis or browser
SOURCES := stablessm_core server worker web migrations tests benchmarks docs build_backend.py
# what the environment is made from, and what only the kernels in C are
DECLARED := pyproject.toml constraints.txt build_backend.py
KERNELS := stablessm_core/compiled
KERNEL_SOURCES := $(KERNELS)/build.py $(wildcard $(KERNELS)/*.[ch])
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[train,dev]'
BUILD := $(BIN)/python -m stablessm_core.compiled.build

.DEFAULT_GOAL := help
.PHONY: help setup run check quick-tests test references peers kernels attack chaos load lint lint-js format docs audit clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(STAMP)  ## build .venv from constraints.txt; does nothing when up to date

# only kernels changed: only they are built, if there is a compiler; kernels that cannot be built keep nothing else from being installed
$(STAMP): $(DECLARED) $(KERNEL_SOURCES)
	@command -v $(PYTHON) >/dev/null || { echo "make setup: $(PYTHON) not found; Python 3.11 or newer is needed" \
	    "(make PYTHON=/path/to/python3 ...)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make setup: Python 3.11 or newer is needed," \
	    "$(PYTHON) is $$($(PYTHON) --version) (make PYTHON=/path/to/python3 ...)" >&2; exit 1; }
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV) || { echo "make setup: no virtual" \
	    "environment could be made; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "$(if $(filter $(DECLARED),$?),installing into $(VENV); the first time this takes minutes,building the kernels again)"
	@$(if $(filter $(DECLARED),$?),,$(BUILD) >/dev/null 2>&1 ||) $(INSTALL) \
	    || { ! $(BUILD) --compiler && echo "make setup: trying again without compiled kernels" >&2 && STABLESSM_COMPILER=none $(INSTALL); }
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true # pip would do it on one core; some files are no Python 3
	@if cat $(KERNELS)/kernels-*.txt >&2 2>/dev/null; then echo "make setup: so there are no compiled kernels; models train" \
	    "several times slower on this processor (docs/operations.md, Compiled kernels)" >&2; fi
	@touch $(STAMP)

run: setup  ## start StableSSM with a demo on http://127.0.0.1:8000
	@exec $(BIN)/stablessm up --demo $(ARGS)

check: setup  ## within a minute: `make lint`, and beside it the tests that need no service, browser, kernel interpreter or sleep
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint quick-tests

quick-tests: setup
	@$(PYTEST) --numprocesses 2 -m "not ($(SET_APART))" $(ARGS)

test: setup  ## run every test in four processes; REQUIRE_SERVICES=1 fails what would be skipped, ARGS="tests/core -k scan" narrows
	@exec $(PYTEST) --durations 30 $(ARGS)

references: setup $(REFERENCES)/.installed  ## compare the layers with public ones, which it installs beside .venv; ARGS as above
	@REQUIRE_REFERENCES=1 $(REFERENCES)/bin/python -m pytest tests/references --ignore tests/references/test_fla.py $(ARGS)
	@REQUIRE_REFERENCES=1 $(REFERENCES)/bin/python -m pytest tests/references/test_fla.py $(ARGS)

peers: setup $(PEERS)/.installed  ## install beside .venv what benchmarks compare with: .venv-peers/bin/python -m benchmarks.scan

$(REFERENCES)/.installed: tests/references/requirements.txt
$(PEERS)/.installed: benchmarks/requirements.txt

# an environment that has what .venv has, found through a .pth file, and the packages of that list beside it
$(REFERENCES)/.installed $(PEERS)/.installed: | $(STAMP)
	@$(BIN)/python -m venv --clear --without-pip $(@D)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	    >"$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth"
	@$(BIN)/python -m pip --python $(@D)/bin/python install -qq --disable-pip-version-check --no-compile --no-deps \
	    --no-build-isolation --requirement $<
	@touch $@

kernels: setup  ## run every case of the kernels in Triton's interpreter, and compile every tile; `make test` takes each tenth
	@EVERY_KERNEL=1 $(PYTEST) tests/core/scan/test_scan_interpreter.py tests/core/fused/test_fused_interpreter.py $(ARGS)

attack: setup  ## send 20,000 requests made from the OpenAPI document, alone and in sequences, on both databases
	ATTACK_REQUESTS=10000 $(BIN)/pytest tests/server/http/test_attack.py -s $(ARGS)

chaos: setup  ## break real services 200 times while runs train, and judge every run; ARGS="--seed 7" repeats the faults of a seed
	@exec $(BIN)/python -m tests.chaos $(ARGS)

load: setup  ## measure what the service bears, beside what it promises; ARGS="viewers" for one part, --short to rehearse
	$(BIN)/python -m benchmarks.load $(ARGS)

lint: setup lint-js  ## formatting, ruff, types, who may import whom, JavaScript
	$(BIN)/ruff format --check $(wildcard $(SOURCES))
	$(BIN)/ruff check $(wildcard $(SOURCES))
	$(BIN)/mypy
	$(BIN)/lint-imports

# node_modules is for these checks alone: the pages are served as they are
lint-js:  ## lint and type-check web/static; needs npm
	@if command -v npm >/dev/null; then $(MAKE) --silent web/node_modules/.installed && npm --prefix web run --silent check; \
	elif [ -n "$$CI" ] && [ "$$CI" != false ]; then echo "make lint-js: npm not found; JavaScript cannot be checked (apt-get install npm)" >&2; exit 1; \
	else echo "make lint-js: npm not found; JavaScript was NOT CHECKED (apt-get install npm)" >&2; fi

web/node_modules/.installed: web/package.json web/package-lock.json
	@npm --prefix web ci --silent --no-audit --no-fund
	@touch $@

format: setup  ## rewrite the sources as `make lint` wants them
	$(BIN)/ruff check --fix $(wildcard $(SOURCES))
	$(BIN)/ruff format $(wildcard $(SOURCES))

docs: setup  ## rewrite the generated table of docs/configuration.md
	$(BIN)/python docs/configuration_table.py

audit: setup  ## are any of the pinned packages known to be vulnerable?
	@$(BIN)/python .ci/audit.py

clean:  ## remove the environment and caches (never the runs in .stablessm)
	rm -rf $(VENV) $(REFERENCES) $(PEERS) web/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info build dist \
	    $(KERNELS)/kernels-*.so $(KERNELS)/kernels-*.txt
