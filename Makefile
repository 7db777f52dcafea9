# make demo and make test are all that a fresh machine with Python 3.11 needs.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 4

.PHONY: help demo test lint types imports tests format reference clean

help:
	@echo "make demo     two organisations train one network on real flights, as two processes on this machine"
	@echo "make test     all checks: ruff, mypy, import-linter, pytest"
	@echo "make lint     ruff: rules and format      make types    mypy --strict"
	@echo "make imports  import-linter: the map      make tests    pytest, $(WORKERS) at a time, warnings are errors"
	@echo "make format   let ruff fix and format     make reference  write docs/reference.md from the docstrings"
	@echo "make clean    remove $(VENV), caches and builds"

demo: $(READY)
	$(BIN)/tallystick demo

# The tests wait for processes and deadlines half of their time: the other checks run beside them.
test: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 tests lint types imports

lint: $(READY)
	@echo "== ruff check"
	@$(BIN)/ruff check src tests docs
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check src tests docs

types: $(READY)
	@echo "== mypy --strict"
	@$(BIN)/mypy

imports: $(READY)
	@echo "== import-linter"
	@$(BIN)/lint-imports

tests: $(READY)
	@echo "== pytest, warnings are errors"
	@$(BIN)/pytest -n $(WORKERS)

format: $(READY)
	$(BIN)/ruff check --fix src tests docs
	$(BIN)/ruff format src tests docs

reference: $(READY)
	$(BIN)/python docs/make_reference.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The stamp keeps a second make from installing again; new pins or a new pyproject.toml do.
$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("tallystick needs Python 3.11 or newer, found " + sys.version if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --quiet --requirement requirements.txt
	$(BIN)/pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@touch $@
