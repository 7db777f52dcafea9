# make demo and make test are all that a fresh machine with Python 3.11 needs.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
TOOLS := .tools
SITE := .site
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/pip --disable-pip-version-check --quiet
HASHED := install --no-deps --no-build-isolation --require-hashes --requirement
WORKERS ?= 4
CODE := src tests docs experiments robustness

# Processors round otherwise in the last bits, and PyTorch's random numbers follow its vector units: each run of the tests takes one
# of the levels that this processor has, by chance. CAPABILITY=default takes the plainest kernels of PyTorch, MKL, OpenBLAS and NumPy.
THREADS ?= 1
LEVELS := default $(shell grep -qsw avx2 /proc/cpuinfo && echo avx2) $(shell grep -qsw avx512vl /proc/cpuinfo && echo avx512)
ifndef CAPABILITY
CAPABILITY := $(shell printf '%s\n' $(LEVELS) | shuf -n 1 2>/dev/null || echo default)
endif
UNITS := OMP_NUM_THREADS=$(THREADS) POLARS_MAX_THREADS=$(THREADS) ATEN_CPU_CAPABILITY=$(CAPABILITY)
ifeq ($(CAPABILITY)-$(shell uname -m),default-x86_64)
UNITS += MKL_CBWR=COMPATIBLE OPENBLAS_CORETYPE=Nehalem NPY_DISABLE_CPU_FEATURES=X86_V3
endif

.PHONY: help demo test test-all lint types imports tests format reference results pins dist sbom docs clean

help:
	@echo "make demo     two organisations train one network on real flights, as two processes on this machine"
	@echo "make test     all checks: ruff, mypy, import-linter, pytest but for the tests that take long"
	@echo "make test-all all checks, and those too"
	@echo "make lint     ruff: rules and format      make types    mypy --strict"
	@echo "make imports  import-linter: the map      make tests    pytest, $(WORKERS) at a time, warnings are errors"
	@echo "make format   let ruff fix and format     make reference  write the reference from the code"
	@echo "make results  write experiments/pages from the rows under experiments/runs"
	@echo "make pins     write constraints.txt and the hashes of requirements*.txt; UPGRADE=--upgrade takes newer versions"
	@echo "make docs     build the pages into build/site; a warning or a link that leads nowhere ends it"
	@echo "make dist     build dist/*.whl and dist/*.tar.gz, have twine check them, and install the wheel where nothing is"
	@echo "make sbom     write dist/sbom.json (CycloneDX): every package that make test installs"
	@echo "make clean    remove $(VENV), caches and builds"

demo: $(READY)
	$(BIN)/tallystick demo

# Tests that take long are marked so: two lanes, of which continuous integration takes the shorter.
LANE := -m "not long"
test-all: LANE :=
test-all: test

# The tests wait for processes and deadlines half of their time: four run on two cores, and the other checks run beside them.
test: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 tests lint types imports LANE='$(LANE)'

lint: $(READY)
	@echo "== ruff check"
	@$(BIN)/ruff check $(CODE)
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check $(CODE)

types: $(READY)
	@echo "== mypy --strict"
	@$(BIN)/mypy

imports: $(READY)
	@echo "== import-linter"
	@$(BIN)/lint-imports

# Bytecode is kept even where a machine's own setting says otherwise: else each worker and each process of a test compiles all anew.
# In a fresh checkout one process compiles all tests before the workers start, because each of them would do so.
tests: $(READY)
	@echo "== pytest, warnings are errors; the same again: make tests CAPABILITY=$(CAPABILITY) THREADS=$(THREADS)"
	@[ -d tests/__pycache__ ] || $(UNITS) PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --collect-only -qq $(LANE) >/dev/null
	@$(UNITS) PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(WORKERS) $(LANE)

format: $(READY)
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

reference: $(READY)
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/make_lookup.py

# The pages under experiments/pages/ from the rows under experiments/runs/.
results: $(READY)
	$(BIN)/python -m tallystick_experiments.results

# The generator of the site is no part of what is tested: it has an environment of its own.
docs: $(SITE)/.ready
	$(SITE)/bin/python docs/stage.py
	$(SITE)/bin/zensical build --strict --clean

# PyTorch comes in two builds of one version: PyPI's, which for Linux asks for CUDA's libraries, and the CPU build, a fraction of its
# size, from PyTorch's own index. CPU_INDEX= where pip finds the latter by itself.
CPU_INDEX ?= --extra-index-url https://download.pytorch.org/whl/cpu
CUDA := torch|cuda|nvidia|triton
# A package that comes as source tells what it needs by being built, so with the setuptools of $(TOOLS): pip's isolation would take
# any. These hashes are made here, so what they are made of has none yet.
LOCK := $(TOOLS)/bin/uv pip compile --quiet --universal --python $(TOOLS)/bin/python --python-version 3.11 --no-build-isolation \
	--no-annotate --custom-compile-command 'make pins'
LOCK_PART = $(LOCK) pyproject.toml --constraint constraints.txt $(1) | grep -vE '^($(CUDA)|\#)' \
	| $(LOCK) --no-deps --generate-hashes --output-file $(2) -
pins: $(TOOLS)/.ready
	$(LOCK) $(UPGRADE) pyproject.toml --all-extras --group dev --output-file constraints.txt
	grep -vE '^($(CUDA))' constraints.txt | $(LOCK) --no-deps --generate-hashes --output-file requirements.txt -
	grep -E '^($(CUDA))' constraints.txt | $(LOCK) --no-deps --generate-hashes --output-file requirements-cuda.txt -
	$(call LOCK_PART,,requirements-base.txt)
	$(call LOCK_PART,--extra delta --extra postgres --extra redis --extra serve --extra sqlite,requirements-image.txt)
	$(LOCK) --group align --constraint constraints.txt --generate-hashes --output-file requirements-align.txt
	$(LOCK) $(UPGRADE) --group tools --generate-hashes --output-file requirements-tools.txt
	$(LOCK) $(UPGRADE) --group docs --generate-hashes --output-file requirements-docs.txt
	rm -rf build/torch
	grep '^torch==' constraints.txt | sed 's/$$/+cpu/' > requirements-cpu.txt
	pip download --quiet --no-deps --dest build/torch $(CPU_INDEX) --requirement requirements-cpu.txt
	sed -i 's/$$/ \\/' requirements-cpu.txt
	pip hash build/torch/*.whl | sed -n 's/^--hash/    &/p' >> requirements-cpu.txt
	sed -i '1i # make pins wrote this file.' requirements-cpu.txt

# The wheel is built from the source archive, with the time of the commit: the same commit gives the same bytes.
dist: $(TOOLS)/.ready
	rm -rf dist/tallystick-* build/empty
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(TOOLS)/bin/python -m build --no-isolation --outdir dist .
	$(TOOLS)/bin/twine check --strict dist/tallystick-*
	$(PYTHON) -m venv build/empty
	build/empty/bin/pip --disable-pip-version-check --quiet $(HASHED) requirements-base.txt
	build/empty/bin/pip --disable-pip-version-check --quiet $(HASHED) requirements-cpu.txt $(CPU_INDEX) \
		|| build/empty/bin/pip --disable-pip-version-check --quiet $(HASHED) requirements-cuda.txt
	build/empty/bin/pip --disable-pip-version-check --quiet install --no-deps --no-index dist/tallystick-*.whl
	build/empty/bin/pip check
	build/empty/bin/python -I .ci/installed.py

sbom: $(READY) $(TOOLS)/.ready
	@mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file dist/sbom.json $(BIN)/python

clean:
	rm -rf $(VENV) $(TOOLS) $(SITE) build dist src/*.egg-info */src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The stamp keeps a second make from installing again; new pins or a new pyproject.toml do.
# Each file must have a hash that stands here, setuptools first, for the one package that comes as source is built with it.
# Where pip finds PyTorch's CPU build, that is taken; else PyPI's.
$(READY): requirements.txt requirements-cpu.txt requirements-cuda.txt pyproject.toml experiments/pyproject.toml robustness/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("tallystick needs Python 3.11 or newer, found " + sys.version if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@awk '/^[a-z]/ { wanted = /^setuptools==/ } wanted' requirements.txt > $(VENV)/build.txt
	$(PIP) $(HASHED) $(VENV)/build.txt
	$(PIP) $(HASHED) requirements.txt
	$(PIP) $(HASHED) requirements-cpu.txt || $(PIP) $(HASHED) requirements-cuda.txt
	$(PIP) install --no-deps --no-build-isolation --editable . --editable experiments --editable robustness
	$(PIP) check
	@touch $@

$(TOOLS)/.ready: requirements-tools.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip --disable-pip-version-check --quiet $(HASHED) requirements-tools.txt
	@touch $@

$(SITE)/.ready: requirements-docs.txt
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/pip --disable-pip-version-check --quiet $(HASHED) requirements-docs.txt
	@touch $@
