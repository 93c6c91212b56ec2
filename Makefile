# Two commands do all the set-up: `make demo` runs the main job, `make test` runs the gates.
#   TORCH_INDEX=cpu   take torch from PyTorch's own CPU wheels instead of the multi-gigabyte CUDA build (or give an index URL)
#   DEMO=short        a demo of about a minute instead of about four
#   PYTHON=python3.12 the interpreter the virtual environment is made with

SHELL := /bin/bash
VENV ?= .venv
PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
DEMO ?= full
export VENV PYTHON TORCH TORCH_INDEX

.PHONY: demo test slow lab bench docs lint clean help

help:
	@sed -n '1,4s/^# //p' Makefile; echo; echo "targets: demo test slow lab bench docs lint clean"

demo:
	@scripts/setup.sh demo
	@$(VENV)/bin/dflashctl demo $(if $(filter short,$(DEMO)),--short,)

test:
	@scripts/setup.sh test
	@scripts/gates.sh

slow:
	@scripts/setup.sh test
	@$(VENV)/bin/python -m pytest -q -n 2 --dist loadfile -m slow

lint:
	@scripts/setup.sh dev
	@scripts/gates.sh lint

lab:
	@scripts/setup.sh test
	@$(VENV)/bin/python -m tests.lab up

bench:
	@scripts/setup.sh test
	@$(VENV)/bin/python -m benchmarks.detection

docs:
	@scripts/setup.sh dev
	@scripts/docs.sh site
	@echo "docs: open site/index.html, or: $(VENV)/bin/python -m http.server -d site -b 127.0.0.1 8000"

clean:
	rm -rf $(VENV) demo-out site build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage
