# `make run` and `make test` are enough to start. Each first installs what it needs, which takes minutes the first time only.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.installed-run
STAMP := $(VENV)/.installed
REFERENCES := .venv-references
PEERS := .venv-peers
# tests that share a set-up stay in one process, and the long ones begin first (tests/conftest.py)
# five processes on two cores, because many tests wait more than they compute
PYTEST := $(BIN)/pytest --numprocesses 5 --dist loadscope --no-loadscope-reorder
# the tests start hundreds of processes, and each would compile every module again
unexport PYTHONDONTWRITEBYTECODE
ARGS ?=
# what `make check` leaves out, and the rooms of which it leaves out every test
SET_APART := slow or long or interpreter or postgres or redis or browser
NEVER_QUICK := $(addprefix tests/,browser/ chaos/ end_to_end/ integrations/ references/ __pycache__/)
# about half of the work of `make check`
CORE_TESTS := tests/core/ tests/studies/
SOURCES := stablessm stablessm_core server worker studies web migrations tests benchmarks docs examples service
# the sources of the environment, and the sources of the C kernels alone
DECLARED := pyproject.toml service/pyproject.toml constraints.txt service/build_backend.py
KERNELS := stablessm_core/kernels
KERNEL_SOURCES := $(KERNELS)/build.py $(wildcard $(KERNELS)/*.[ch])
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --constraint constraints.txt
# two distributions of this repository: what other programs import, and the service
INSTALL := $(PIP) --editable . --editable './service[train]'
DEVELOPMENT := $(BIN)/python -c 'import tomllib; \
    print(*tomllib.load(open("service/pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"], sep="\n")'
BUILD := $(BIN)/python -m stablessm_core.kernels.build
# the modules imported at the start; compiling every installed module would take three times as long
IMPORT_SERVICE := import server.cli.serve, worker.service
IMPORT_TRAINING := from worker.fork_server import preload; preload()

.DEFAULT_GOAL := help
.PHONY: help setup setup-run run check quick-core quick-rooms test all references peers kernels attack chaos load lint lint-python lint-types lint-js format docs audit clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 10

setup: setup-run $(STAMP)  ## build .venv from constraints.txt, with the development tools; does nothing when up to date

setup-run: $(RUN_STAMP)  ## the same with only what running needs

# If only kernels changed, only they are built (with a compiler). If they cannot be built, everything else is still installed.
$(RUN_STAMP): $(DECLARED) $(KERNEL_SOURCES)
	@command -v $(PYTHON) >/dev/null || { echo "make setup: $(PYTHON) not found; Python 3.11 or newer is needed" \
	    "(make PYTHON=/path/to/python3 ...)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make setup: Python 3.11 or newer is needed," \
	    "$(PYTHON) is $$($(PYTHON) --version) (make PYTHON=/path/to/python3 ...)" >&2; exit 1; }
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV) || { echo "make setup: no virtual" \
	    "environment could be made; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "$(if $(filter $(DECLARED),$?),installing into $(VENV); the first time this takes minutes,building the kernels again)"
	@$(if $(filter $(DECLARED),$?),,$(BUILD) >/dev/null 2>&1 ||) $(INSTALL) \
	    || { ! $(BUILD) --compiler && echo "make setup: trying again without compiled kernels" >&2 && STABLESSM_COMPILER=none $(INSTALL); }
	@$(BIN)/python -c '$(IMPORT_SERVICE)' & $(BIN)/python -c '$(IMPORT_TRAINING)'; wait # the imports store compiled bytecode
	@if cat $(KERNELS)/kernels-*.txt >&2 2>/dev/null; then echo "make setup: so there are no compiled kernels; models train" \
	    "several times slower on this processor (docs/operations.md, Compiled kernels)" >&2; fi
	@touch $(RUN_STAMP)

$(STAMP): $(DECLARED) | $(RUN_STAMP)
	@echo "installing the development tools into $(VENV)"
	@$(DEVELOPMENT) | $(PIP) --requirement /dev/stdin
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true # pip uses only one core; some files are not Python 3
	@touch $(STAMP)

run: setup-run  ## start StableSSM with a demo on http://127.0.0.1:8000
	@exec $(BIN)/stablessm up --demo $(ARGS)

check: setup  ## `make lint`, beside it the tests that need no service, browser, kernel interpreter or sleep
	@$(MAKE) --no-print-directory --jobs 4 --output-sync=target lint-python lint-types lint-js quick-core quick-rooms

# two processes of which each imports only what its rooms need
quick-core quick-rooms: setup
	@$(BIN)/pytest --numprocesses 0 -m "not ($(SET_APART))" $(if $(filter quick-core,$@),$(CORE_TESTS),$(filter-out $(CORE_TESTS) $(NEVER_QUICK),$(wildcard tests/*/)))

test: setup  ## run the tests but for the long suites; REQUIRE_SERVICES=1 fails what would be skipped, ARGS="tests/core -k scan" narrows
	@exec $(PYTEST) -m "not long" --durations 30 $(ARGS)

all: setup  ## run the long suites (core, kernels, chaos, attack, machines, ...); SUITES="chaos attack" narrows
	@REQUIRE_SERVICES=1 $(BIN)/python -m tests.long_suites run $(SUITES)

references: setup $(REFERENCES)/.installed  ## compare the layers with public ones, which it installs beside .venv; ARGS as above
	@REQUIRE_REFERENCES=1 $(REFERENCES)/bin/python -m pytest tests/references --ignore-glob "tests/references/test_fla*.py" $(ARGS)
	@REQUIRE_REFERENCES=1 $(REFERENCES)/bin/python -m pytest tests/references/test_fla.py tests/references/test_fla_watched.py $(ARGS)

peers: setup $(PEERS)/.installed  ## install beside .venv what benchmarks compare with: .venv-peers/bin/python -m benchmarks.scan

$(REFERENCES)/.installed: tests/references/requirements.txt
$(PEERS)/.installed: benchmarks/requirements.txt

# an environment that uses the packages of .venv through a .pth file, plus the packages of its own list
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

lint: setup  ## formatting, ruff, types, who may import whom, JavaScript
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint-python lint-types lint-js

lint-python: setup
	$(BIN)/ruff format --check $(wildcard $(SOURCES))
	$(BIN)/ruff check $(wildcard $(SOURCES))
	$(BIN)/lint-imports

lint-types: setup
	$(BIN)/mypy

# only these checks use node_modules: the pages are served without a build
lint-js:  ## check format, lint and types of web/static; needs npm
	@if command -v npm >/dev/null; then $(MAKE) --silent web/node_modules/.installed && npm --prefix web run --silent check; \
	elif [ -n "$$CI" ] && [ "$$CI" != false ]; then echo "make lint-js: npm not found; JavaScript cannot be checked (apt-get install npm)" >&2; exit 1; \
	else echo "make lint-js: npm not found; JavaScript was NOT CHECKED (apt-get install npm)" >&2; fi

web/node_modules/.installed: web/package.json web/package-lock.json
	@npm --prefix web ci --silent --no-audit --no-fund
	@touch $@

format: setup  ## rewrite the sources as `make lint` wants them
	$(BIN)/ruff check --fix $(wildcard $(SOURCES))
	$(BIN)/ruff format $(wildcard $(SOURCES))

docs: setup  ## rewrite what is generated: tables of docs/configuration.md, systems.md, verdict-sentences.md, api.md and paper/culprits.md, RunAnswer in web/types.d.ts
	$(BIN)/python docs/configuration_table.py
	$(BIN)/python docs/systems_tables.py
	$(BIN)/python docs/verdict_sentences.py
	$(BIN)/python docs/culprits_numbers.py
	$(BIN)/python docs/run_fields.py

audit: setup  ## are any of the pinned packages known to be vulnerable?
	@$(BIN)/python .ci/audit.py

clean:  ## remove the environment and caches (never the runs in .stablessm)
	rm -rf $(VENV) $(REFERENCES) $(PEERS) web/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info build service/build dist \
	    $(KERNELS)/kernels-*.so $(KERNELS)/kernels-*.txt
