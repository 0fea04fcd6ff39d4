# make venv | demo | train | test | lint | docs | clean      (make PYTHON=/path/to/python3.11 venv picks the interpreter)

PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FITS := import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))

.PHONY: help venv demo train test lint docs clean

help:
	@echo "make venv   create $(VENV) with the pinned versions of constraints.txt"
	@echo "make demo   translate ten German sentences with the bundled model, and show one step by step"
	@echo "make train  train a small German-English model on the sample in demo/ and translate with it"
	@echo "make test   set-up, linters, type checks and all tests"
	@echo "make lint   ruff and mypy"
	@echo "make docs   regenerate docs/cli.md and the generated tables of docs/ and models/"
	@echo "make clean  remove $(VENV), build output and caches"
	@echo "make PYTHON=/path/to/python3.11 venv   with an interpreter of your choice"

venv: $(STAMP)

# Candidates are run, not just looked up: a version manager's stub can be on the PATH and still fail.
# 3.11 comes first, that is where the pins are tested. setuptools is installed first and build isolation is
# off, so that nothing unpinned is fetched.
$(STAMP): pyproject.toml constraints.txt
	@set -e; chosen=""; \
	for candidate in $(if $(PYTHON),"$(PYTHON)",python3.11 python3.12 python3); do \
	  if "$$candidate" -c '$(FITS)' >/dev/null 2>&1; then chosen="$$candidate"; break; fi; \
	done; \
	if [ -z "$$chosen" ]; then \
	  echo "lath: error: $(if $(PYTHON),$(PYTHON) is not,no) Python 3.11 or 3.12 with venv and pip$(if $(PYTHON),, was found);" \
	    "install one, or name it: make PYTHON=/path/to/python3.11 venv" >&2; \
	  exit 2; \
	fi; \
	if ! $(BIN)/python -c '$(FITS)' >/dev/null 2>&1; then "$$chosen" -m venv --clear $(VENV); fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e '.[dev,paper,logs,plots,bench,serve]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python demo/translate.py

train: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" sh demo/train.sh

lint: $(STAMP)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy --strict lath

docs: $(STAMP)
	$(BIN)/python docs/generate.py

# One thread for each of the two workers: more would only get in each other's way.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

clean:
	rm -rf $(VENV) build lath.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find lath tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
