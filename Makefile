# Tartlet's tasks; `make help` lists them. The same targets run on a laptop and in CI.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

# Without cached bytecode each of the hundreds of processes that the tests start compiles all its modules anew.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAGE := tools/stage.sh
PROMPT ?= 374+588=
ARGS ?=
MODEL ?= models/demo
OUT ?= models/work/demo

##@ Start here

.PHONY: help
help:  ## This list
	@awk 'BEGIN {FS = ":.*  ## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*  ## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup:  ## Everything the other targets need, into .venv: several GB once, then nothing (PYTHON=... names the interpreter)
	@tools/setup.sh

.PHONY: demo
demo: setup  ## The text-completion inferlet on the demo model (PROMPT=...)
	$(BIN)/tartlet run inferlets/std/text_completion.py --prompt "$(PROMPT)" --max-tokens 64

.PHONY: test
test: setup  ## The tests, two processes at a time (ARGS="tests/control -k name": pytest on what is named)
	@$(BIN)/python -m tools.testing $(ARGS)

.PHONY: soak
soak: setup  ## The long soaks, which neither `make test` nor `make e2e` runs; servers that they need must be there
	CI=1 $(BIN)/python -m pytest -m soak --timeout=3600 $(ARGS)

.PHONY: test-gpu
test-gpu: setup  ## The tests that need a CUDA device; skipped where torch finds none
	TRITON_INTERPRET=0 $(BIN)/python -m pytest -m gpu $(ARGS)

.PHONY: gpu-proof
gpu-proof:  ## Proves the GPU path on one card, offline, in 10 minutes (ARGS="--step graphs", ARGS="--rehearse": on the CPU)
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,python3) bench/gpu/start.py $(ARGS)

.PHONY: gpu-bundle
gpu-bundle: setup  ## .gpu: what the proof needs on a machine without a network (ARGS="--aot DIR": FlashInfer's kernels)
	$(BIN)/python -m bench.gpu.bundle $(ARGS)

##@ On Kubernetes

.PHONY: cluster-up
cluster-up: setup  ## A cluster for tests: the one that KUBECONFIG names, kind's, or one of its own (as root)
	@$(BIN)/python -m e2e.cluster up

.PHONY: cluster-down
cluster-down: setup  ## Brings that cluster down, without a trace
	@$(BIN)/python -m e2e.cluster down

.PHONY: e2e
e2e: setup  ## The gate's tests on a cluster, which is brought up and down if it isn't up (ARGS="-k name")
	@$(BIN)/python -m e2e.cluster test $(ARGS)

.PHONY: e2e-all
e2e-all: setup clients last-release  ## All tests on a cluster, those beyond the gate too, other clients, the last release
	@$(BIN)/python -m e2e.cluster test --all $(ARGS)

.PHONY: clients
clients: setup  ## Other projects' clients, coding agents and an OpenTelemetry Collector with a gateway (ARGS="-k codex")
	@$(BIN)/python -m pytest -m beyond_gate tests/clients $(ARGS)

.PHONY: last-release
last-release: setup  ## This checkout's control with a runtime and a worker of the last release, from git's history
	@$(BIN)/python -m pytest -m beyond_gate tests/e2e/releases $(ARGS)

.PHONY: bench-operator
bench-operator: setup  ## The operator with 1,000 to 10,000 Inferlets on a real API server: 6 minutes (ARGS="--objects 1000")
	@$(BIN)/python -m bench.operator_load.scale $(ARGS)

##@ The demo model

.PHONY: model
model: setup  ## Trains it in 94 minutes of two cores, into OUT=models/work/demo (at half the speed without a C++ compiler)
	$(BIN)/python -m models.training.train --out $(OUT) $(if $(shell command -v $(CXX) 2>/dev/null),--compiled) $(ARGS)

.PHONY: eval-model
eval-model: setup  ## Its answers to problems that it wasn't trained on, as a table (MODEL=..., ARGS="--problems 100")
	$(BIN)/python -m models.training.evaluate $(MODEL) $(ARGS)

##@ Before a commit

.PHONY: check
check: lint test  ## Lint, then the tests; CI asks for both, and for `make e2e`

.PHONY: lint
lint: setup  ## Format, ruff, types, layers, generated code: nothing is changed
	@failed=0; \
	$(STAGE) format $(BIN)/ruff format --check --quiet || failed=1; \
	$(STAGE) ruff $(BIN)/ruff check --quiet || failed=1; \
	$(STAGE) types $(BIN)/mypy || failed=1; \
	$(STAGE) layers $(BIN)/lint-imports --no-logo || failed=1; \
	$(STAGE) "generated: protos" $(BIN)/python tools/gen_protos.py --check || failed=1; \
	$(STAGE) "generated: the SDK's ABI" $(BIN)/python -m tools.gen_abi --check || failed=1; \
	$(STAGE) "generated: errors" $(BIN)/python -m tools.gen_errors --check || failed=1; \
	$(STAGE) "generated: reference pages" $(BIN)/python -m tools.gen_docs --check || failed=1; \
	$(STAGE) "generated: CRDs" $(BIN)/python -m tools.gen_crds --check || failed=1; \
	$(STAGE) "generated: benchmarks" $(BIN)/python -m tools.gen_benchmarks --check || failed=1; \
	$(STAGE) "generated: dashboards" $(BIN)/python -m tools.gen_dashboards --check || failed=1; \
	$(STAGE) tree $(BIN)/python -m tools.lint_tree || failed=1; \
	exit $$failed

.PHONY: fix
fix: setup  ## Formats the code and mends what ruff can mend
	$(BIN)/ruff format --quiet
	$(BIN)/ruff check --fix

##@ Generated files

.PHONY: generate
generate: protos  ## Everything that is generated and checked in: protos, the SDK's ABI and errors, docs/errors.md
	$(BIN)/python -m tools.gen_abi
	$(BIN)/python -m tools.gen_errors
	$(BIN)/python -m tools.gen_docs
	$(BIN)/python -m tools.gen_crds
	$(BIN)/python -m tools.gen_benchmarks
	$(BIN)/python -m tools.gen_dashboards

.PHONY: protos
protos: setup  ## protos/tartlet_protos from protos/tartlet/v1
	$(BIN)/python tools/gen_protos.py

.PHONY: screenshots
screenshots: setup  ## docs/images/page-*.png: the web page with the demo model, in Chromium
	$(BIN)/python -m tools.screenshots

.PHONY: lock
lock: setup  ## constraints/*.txt from pyproject.toml (UPGRADE=1 moves every version forward)
	tools/lock.sh

##@ Tidy up

.PHONY: clean
clean:  ## Removes caches and build output, keeps .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean  ## Removes .venv too
	rm -rf .venv
