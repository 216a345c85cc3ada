# What is run often, in an environment that has the extras test, dev and spark (scripts/test makes one).

PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)
JOBS ?= $(shell nproc)
export PYTHONPATH := .
# Tests start many processes: without compiled modules each of them spends a second on that.
unexport PYTHONDONTWRITEBYTECODE

# Side by side, as the types take one core; what each says comes in one piece.
MAKEFLAGS += --jobs=$(JOBS) --output-sync=target

.PHONY: kernels check lint types units test tidy format perf demo clean

kernels:  ## the compiled kernels, beside their sources
	$(PYTHON) -W ignore setup.py --quiet build_ext --inplace

check: lint types units  ## what should be done before a commit: under two minutes

# Their files lie in memory where there is some: hundreds of them call fsync.
units: export SHMBROKER_FEWER_EXAMPLES := 1
units:
	@work=$$(mktemp -d /dev/shm/units-XXXXXX || mktemp -d); \
	trap 'rm -rf "$$work"' EXIT; \
	TMPDIR=$$work $(PYTHON) -m pytest -n $(JOBS) --dist worksteal -m 'not thorough' \
	  tests/unit tests/property tests/tidy

lint:  ## style and import contracts
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

types:
	$(PYTHON) -m mypy

test:  ## everything, as CI has it
	scripts/test

tidy:  ## documents and docstrings against the code
	$(PYTHON) -m pytest tests/tidy

format:
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

perf:  ## a few minutes; perf/README.md says what it means
	$(PYTHON) perf/produce
	$(PYTHON) perf/fetch
	$(PYTHON) perf/micro.py

demo:
	scripts/demo

clean:  ## caches; the environment stays
	rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache build *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
