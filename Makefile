# `make run` and `make test` do all the set-up themselves; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KERNEL_ENV := .venv-kernel

SERVICE_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
CLIENTS_STAMP := $(VENV)/.installed-clients
KERNEL_STAMP := $(KERNEL_ENV)/.installed
NODE_TOOLS := .node-tools
NODE_STAMP := $(NODE_TOOLS)/.installed
LIBRECHAT_STAMP := $(NODE_TOOLS)/librechat/.installed
# One process more than a small machine has processors, as tests wait a lot; each has a service and a gateway of
# its own. Files are given out in the order of tests/conftest.py.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder
PIP_OPTIONS := --disable-pip-version-check --progress-bar on

.DEFAULT_GOAL := help
.PHONY: help run test test-exhaustive test-unit check format bench docs kernel-env node-tools system system-test clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

run: $(SERVICE_STAMP) $(KERNEL_STAMP) ## Install what is missing, then start the service
	@exec $(BIN)/jupyter interpreter serve $(ARGS)

test: system-test $(DEV_STAMP) $(CLIENTS_STAMP) $(KERNEL_STAMP) $(NODE_STAMP) $(LIBRECHAT_STAMP) ## Install what is missing, then run all tests
	@echo "==> tests"
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-exhaustive: test ## Then the same claims once more in other modes: fork server, ordinary user
	@echo "==> tests in other modes"
	@$(BIN)/python -m pytest -m exhaustive $(PARALLEL) $(ARGS)

test-unit: $(DEV_STAMP) ## The tests that need neither kernels nor a gateway
	@$(BIN)/python -m pytest tests/unit tests/docs $(ARGS)

check: $(DEV_STAMP) ## Style, types, layers, generated documentation
	@echo "==> ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "==> mypy"
	@$(BIN)/mypy
	@echo "==> layers"
	@$(BIN)/lint-imports
	@echo "==> documentation"
	@$(BIN)/python -m pytest -q tests/docs

format: $(DEV_STAMP) ## Format the code, write the generated documentation anew
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .
	@$(BIN)/python -m docs.generate

bench: $(DEV_STAMP) $(KERNEL_STAMP) ## Measure; prints the tables of docs/benchmarks.md
	@$(BIN)/python -m bench $(ARGS)

kernel-env: $(KERNEL_STAMP) ## The kernels' Python environment

node-tools: $(NODE_STAMP) $(LIBRECHAT_STAMP) ## Programs of npm that the tests run

system: ## Debian packages that an installation needs (asks for nothing when they are there)
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || sh .ci/debian-packages $(PYTHON)-venv
	@$(PYTHON) -c 'import ctypes.util as c, sys; sys.exit(not c.find_library("seccomp"))' \
		|| sh .ci/debian-packages libseccomp2 || echo "==> without libseccomp kernels run without a sandbox"

system-test: system ## Debian packages that the tests need
	@sh .ci/debian-packages --for-tests

clean: ## Remove both environments and all caches
	rm -rf $(VENV) $(KERNEL_ENV) $(NODE_TOOLS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The stamps hold the time of the last complete installation, so that a second call costs nothing.
$(SERVICE_STAMP): pyproject.toml | system
	@echo "==> service environment: installing into $(VENV)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install $(PIP_OPTIONS) -e .
	@touch $@

$(DEV_STAMP): $(SERVICE_STAMP)
	@echo "==> service environment: installing the tools for tests and checks"
	@$(BIN)/python -m pip install $(PIP_OPTIONS) -e '.[test,lint,postgresql]'
	@touch $@

# Of the wheels only single modules are used, and of the agents' packages what their executors import: whole,
# they would bring hundreds of packages.
$(CLIENTS_STAMP): tests/clients-requirements.txt tests/clients-wheels.txt tests/clients-agents.txt $(DEV_STAMP)
	@echo "==> service environment: installing the clients that the tests run"
	@$(BIN)/python -m pip install $(PIP_OPTIONS) -r tests/clients-requirements.txt
	@$(BIN)/python -m pip download $(PIP_OPTIONS) --no-deps --ignore-requires-python --dest $(VENV)/clients -r tests/clients-wheels.txt
	@rm -rf $(VENV)/clients/agents
	@$(BIN)/python -m pip install $(PIP_OPTIONS) --no-deps --target $(VENV)/clients/agents -r tests/clients-agents.txt
	@touch $@

$(KERNEL_STAMP): gateway_config/kernel-requirements.txt gateway_config/install_kernel.py gateway_config/deno.sh $(wildcard gateway_config/ipython/*.py) | system
	@echo "==> kernel environment: creating $(KERNEL_ENV)"
	@$(KERNEL_ENV)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(KERNEL_ENV)
	@echo "==> kernel environment: installing numpy, pandas, matplotlib ... (a few minutes the first time)"
	@$(KERNEL_ENV)/bin/python -m pip install $(PIP_OPTIONS) -r gateway_config/kernel-requirements.txt
	@$(KERNEL_ENV)/bin/python -m pip freeze > $(KERNEL_ENV)/installed.txt
	@echo "==> kernel environment: writing the kernelspec and the font list"
	@$(KERNEL_ENV)/bin/python gateway_config/install_kernel.py
	@touch $@

$(NODE_STAMP): tests/node/package.json tests/node/package-lock.json | $(DEV_STAMP)
	@echo "==> node tools: installing into $(NODE_TOOLS)"
	@mkdir -p $(NODE_TOOLS)
	@cp $^ $(NODE_TOOLS)
	@$(BIN)/python tests/node/npm.py ci --prefix $(NODE_TOOLS) --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

$(LIBRECHAT_STAMP): tests/node/librechat/package.json tests/node/librechat/package-lock.json | $(DEV_STAMP)
	@echo "==> node tools: installing into $(NODE_TOOLS)/librechat"
	@mkdir -p $(NODE_TOOLS)/librechat
	@cp $^ $(NODE_TOOLS)/librechat
	@$(BIN)/python tests/node/npm.py ci --prefix $(NODE_TOOLS)/librechat --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@
