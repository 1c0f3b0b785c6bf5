# make test   sets up .venv and runs every check: lint, formatting, types, tests
# make tune   sets up .venv, tunes two real operators and prints them beside the vendor libraries
# make gpu-check  sets up .venv for an NVIDIA GPU and says whether everything is right on it, and how fast, in less than 8 minutes;
#                 `make gpu-check GPU_PYTHON=python3` takes an interpreter that has everything, and installs nothing
# make site   sets up .venv, builds the documentation site and prints its path
# make lint   the checks of `make test` that run no code of the project
# make clean  removes what the others built, except .venv, logs and runs

# The first Python that is new enough; `make PYTHON=...` overrides it.
PYTHON ?= $(or $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name)))),python3)
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
# Not `python -m`: that puts this folder, with its `ir`, `datasets` and so on, on sys.path.
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

# The baseline that brings oneDNN and MKL; numpy's OpenBLAS is there anyway.  `make tune TUNE_EXTRAS=torch,baselines` adds more.
TUNE_EXTRAS ?= torch
TRIALS ?= 128
LOG ?= log.jsonl
WORKLOADS := 'matmul(m=1024,n=1024,k=1024)' 'conv2d(n=1,h=56,w=56,ci=64,co=64,kh=3,kw=3,pad=1,bias=1,relu=1)'

# Options of experiments/gpu_check/run.py.
GPU_CHECK ?=
GPU_PYTHON ?=

# Most tests start processes, and each would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test tune gpu-check site lint clean

test: lint
	$(BIN)/pytest -n $(JOBS) --dist worksteal

tune: $(VENV)/.installed-$(TUNE_EXTRAS)
	$(BIN)/tunesmith tune $(WORKLOADS) --trials $(TRIALS) --log $(LOG) --seed 0
	$(BIN)/tunesmith bench $(WORKLOADS) --log $(LOG)

gpu-check: $(if $(GPU_PYTHON),,$(VENV)/.installed-for-gpu-check)
	PYTHONPATH="$(CURDIR)/src$${PYTHONPATH:+:$$PYTHONPATH}" $(or $(GPU_PYTHON),$(BIN)/python) experiments/gpu_check/run.py $(GPU_CHECK)

# The comparison needs a torch that was built with CUDA.  The pin of torch is not used: where it has brought a build for CPUs, that is
# replaced, and another torch that sees GPUs is good.
$(VENV)/.installed-for-gpu-check: pyproject.toml constraints.txt | $(BIN)/pip
	@grep -v '^torch==' constraints.txt > $(VENV)/constraints-gpu.txt
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.version.cuda)' 2>/dev/null || $(BIN)/pip uninstall --quiet --yes torch 2>/dev/null
	$(BIN)/pip install --quiet --disable-pip-version-check -c $(VENV)/constraints-gpu.txt -e '.[cuda,torch]' pytest hypothesis
	@touch $@

site: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "$(CURDIR)/build/site/index.html"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# The stamp says which extras are installed; it is newer than what it was made from, or pip runs again.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP_INSTALL) -e '.[$*]'
	@touch $@

# Debian's python3 comes without ensurepip; a pip of the system can fill the environment just as well.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tunesmith needs Python 3.11 or newer, and $(PYTHON) is not: install it, or run  make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || \
	  { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; } || \
	  { rm -rf $(VENV); echo "$(PYTHON) can make no virtual environment: run  apt install python3-venv  (or python3-pip)" >&2; exit 1; }

.SECONDARY:
.DELETE_ON_ERROR:
