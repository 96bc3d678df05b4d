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
# The rules of the contract: every branch of these is covered by their own tests.
CORE := env_worker.domain.ledger env_worker.domain.runs env_worker.delta.diff env_broker.routes env_client.assembly

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "envtrio needs Python 3.11 or newer on the path; install it, or name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "this Python cannot make a virtual environment; on Debian: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }

# One stamp for each set of extras, so that `make run` installs only what it needs.
$(VENV)/.installed-run: pyproject.toml | $(VENV)/bin/python
	@echo "installing envtrio into $(VENV)"
	@$(PIP) install --editable '.[reasoning-gym,progress]'
	@touch $@
$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing envtrio and its test tools into $(VENV)"
	@$(PIP) install --editable '.[reasoning-gym,progress,test,lint]'
	@touch $@ $(VENV)/.installed-run

run: $(VENV)/.installed-run ## Run 32 reasoning tasks through a broker and two workers
	@$(BIN)/python examples/demo.py

test: $(VENV)/.installed-dev ## Run all tests
	$(BIN)/python -m pytest -q

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
	$(BIN)/python -m pytest -q tests/unit tests/property tests/contract/test_merge_rules.py \
		$(foreach module,$(CORE),--cov=$(module)) --cov-branch --cov-fail-under=100 --cov-report=term-missing

protos: | $(VENV)/bin/python ## Regenerate the stubs
	$(BIN)/python protos/generate.py

release-image: $(VENV)/.installed-dev ## At a release: remember its protos for `buf breaking`
	$(BIN)/buf build protos -o $(RELEASE_IMAGE)

format: $(VENV)/.installed-dev ## Format Python and protos
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .
	$(BIN)/buf format protos --write

up: ## docker compose: broker, two workers, and the demo client
	docker compose up --build --detach --wait broker worker
	docker compose run --rm client

down: ## docker compose: end what `make up` started
	docker compose down --volumes --remove-orphans

clean: ## Remove environments and caches
	rm -rf $(VENV) .venv-protos build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.PHONY: help run test verify lint drift coverage protos release-image format up down clean
