# Each target does all of its own set-up: Python 3.11 or newer and make are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO_ARGS ?=

.PHONY: demo test slow lint bench clean

demo: $(VENV)/.demo
	$(BIN)/streamd demo $(DEMO_ARGS)

test: $(VENV)/.dev
	$(BIN)/python -m pytest

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow --timeout 3600

lint: $(VENV)/.dev
	$(BIN)/ruff check streamd tests
	$(BIN)/mypy

bench: $(VENV)/.bench
	$(BIN)/python -m tests.benchmarks

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The constraints file pins what CI installs; see CONTRIBUTING.md for installing without it.
$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev,arrow]'
	touch $@ $(VENV)/.demo

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev,arrow,bench]'
	touch $@ $(VENV)/.dev $(VENV)/.demo

clean:
	rm -rf $(VENV) build *.egg-info
