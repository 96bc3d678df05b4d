# `make run` and `make test` need Python 3.11 or newer and nothing else: each makes its environment first.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

# The newest Python on the path that is new enough; `make PYTHON=/path/to/python test` names another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do command -v $$p >/dev/null 2>&1 \
	&& $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
RELEASE_IMAGE := protos/last_release.binpb
# The rules of the contract, and the fixed tests that cover every branch of them: what is drawn at random may
# miss one.
CORE := env_worker/domain/ledger.py,env_worker/domain/runs.py,env_worker/domain/tombstones.py,env_worker/domain/sessions.py,$\
	env_worker/delta/diff.py,env_broker/route.py,env_broker/routes.py,env_broker/route_memory.py,env_broker/sessions.py,$\
	env_broker/remembered.py,env_broker/tombstones.py,env_broker/pool.py,env_broker/waiters.py,env_broker/scale.py,$\
	env_client/assembly.py,env_client/confirmations.py
CORE_TESTS := tests/unit/worker/ledger tests/unit/worker/delta tests/unit/broker/test_routes.py \
	tests/unit/broker/test_pool.py tests/unit/broker/test_waiters.py tests/unit/broker/test_scale.py \
	tests/unit/broker/test_sessions.py tests/unit/broker/test_confirm_routes.py \
	tests/unit/client/test_assembly.py tests/unit/client/test_confirmations.py

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "envtrio needs Python 3.11 or newer on the path; install it, or name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "this Python cannot make a virtual environment; on Debian: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }

# One stamp for each set of extras, so that `make run` installs only what it needs.
$(VENV)/.installed-run: pyproject.toml examples/install_reasoning_gym.py | $(VENV)/bin/python
	@echo "installing envtrio into $(VENV)"
	@$(PIP) install --editable '.[progress]'
	@$(BIN)/python examples/install_reasoning_gym.py
	@touch $@
$(VENV)/.installed-dev: $(VENV)/.installed-run
	@echo "installing the test tools into $(VENV)"
	@$(PIP) install --editable '.[progress,test,lint]'
	@touch $@
$(VENV)/.installed-bench: $(VENV)/.installed-run
	@$(PIP) install --editable '.[progress,bench]'
	@touch $@

run: $(VENV)/.installed-run ## Run 32 reasoning tasks through a broker and two workers
	@$(BIN)/python examples/demo.py

# In three processes, as tests wait for nearly half of their time; see tests/helpers/parallel.py. In the order of
# the files, which has the many short ones last.
test: $(VENV)/.installed-dev ## Run all tests
	$(BIN)/python -m pytest -q --numprocesses 3 --dist loadfile --no-loadscope-reorder

# In environments of their own, since each version of a package like this pins much else.
VERIFIERS ?= 0.4.0 0.4.1.dev86
test-extras: | $(VENV)/bin/python ## Run the tests that need a large extra: verifiers, in each of its versions. About 7 minutes
	@for version in $(VERIFIERS); do \
		home=.bench/extras-$$version; \
		echo "verifiers $$version: installing into $$home"; \
		test -x $$home/bin/python || $(PYTHON) -m venv $$home || exit 1; \
		$$home/bin/python -m pip --disable-pip-version-check --quiet install --editable '.[test,engines,verifiers]' verifiers==$$version || exit 1; \
		$$home/bin/python -m pytest -q tests/extras/verifiers || exit 1; \
	done

verify: lint drift coverage ## All checks that are no tests, and the branch coverage of the core

lint: $(VENV)/.installed-dev ## ruff, mypy, import-linter, buf
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint protos
	$(BIN)/buf format protos --diff --exit-code
	$(BIN)/buf breaking protos --against $(RELEASE_IMAGE)

drift: | $(VENV)/bin/python ## Fail if a committed stub differs from its proto
	$(BIN)/python protos/generate.py --check

coverage: $(VENV)/.installed-dev ## Fail unless every branch of the core is covered
	$(BIN)/coverage run --branch --source=env_worker,env_broker,env_client -m pytest -q $(CORE_TESTS)
	$(BIN)/coverage report --include='$(CORE)' --show-missing --fail-under=100

soak: $(VENV)/.installed-dev ## 100,000 runs, most of them disturbed: is memory flat, is nothing left? About 5 minutes
	$(BIN)/python -m benchmarks.soak

mutants: $(VENV)/.installed-dev ## Break the contract in some hundred ways: each must fail a test. About 5 minutes
	$(BIN)/python -m tests.mutants.run

SECONDS ?= 60
SEED ?= 1
chaos: $(VENV)/.installed-dev ## Random faults under load for SECONDS=60 from SEED=1: does every promise hold?
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) --seed $(SEED)

fault-matrix: $(VENV)/.installed-dev ## Play the fault matrix, and write docs/fault_matrix.md from what passed
	$(BIN)/python -m tests.helpers.fault_matrix

PEER_PYTHON ?=
BENCH ?=
bench: $(VENV)/.installed-bench ## This pool and verifiers' side by side in one run: writes benchmarks/RESULTS.md. About 13 minutes
	$(BIN)/python -m benchmarks.versus $(if $(PEER_PYTHON),--peer-python $(PEER_PYTHON)) $(BENCH)

bench-confirm: $(VENV)/.installed-dev ## What a confirmation costs, as a ratio
	$(BIN)/python -m benchmarks.confirm_cost

bench-slow-reader: $(VENV)/.installed-dev ## What a client that reads nothing costs the others, as ratios. About 4 minutes
	$(BIN)/python -m benchmarks.slow_reader

bench-isolate: $(VENV)/.installed-dev ## What a process for each run costs, as ratios
	$(BIN)/python -m benchmarks.isolate_cost

bench-arrays: $(VENV)/.installed-dev ## What training arrays cost orchestrator and broker, and how fast a trainer gets them. About 2 minutes
	$(BIN)/python -m benchmarks.arrays --table benchmarks/arrays.md

bench-growth: $(VENV)/.installed-dev ## Does a turn cost more in long episodes, many runs, many workers? About 5 minutes
	$(BIN)/python -m benchmarks.growth

protos: | $(VENV)/bin/python ## Regenerate the stubs
	$(BIN)/python protos/generate.py

docs: $(VENV)/.installed-dev ## Write the parts of the documents that come from code
	$(BIN)/python -m tests.helpers.documents

release-image: $(VENV)/.installed-dev ## At a release: remember its protos for `buf breaking`
	$(BIN)/buf build protos -o $(RELEASE_IMAGE)

format: $(VENV)/.installed-dev ## Format Python and protos
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .
	$(BIN)/buf format protos --write

up: ## docker compose: broker, two workers, and the demo client
	docker compose up --build --detach --wait broker worker
	docker compose run --rm --no-deps client

down: ## docker compose: end what `make up` started
	docker compose down --volumes --remove-orphans

test-compose: ## Build the image, bring the pool up, run the client, take it down; needs a container engine
	@docker info >/dev/null 2>&1 || { echo "test-compose: skipped, no container engine runs here"; exit 0; }; \
	trap '$(MAKE) --no-print-directory down' EXIT; \
	$(MAKE) --no-print-directory up | tee /dev/stderr | grep -q '^32 of 32 runs have an outcome, 0 of them an exception'

clean: ## Remove environments and caches
	rm -rf $(VENV) .venv-protos .bench build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.PHONY: help run test test-extras verify lint drift coverage soak mutants chaos fault-matrix bench bench-confirm bench-slow-reader bench-isolate bench-arrays bench-growth protos docs release-image format up down test-compose clean
