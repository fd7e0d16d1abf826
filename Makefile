# make demo    fresh machine to a running demo
# make test    lint, types and tests
# make test-all  the same with the long enumerations and samplings
# make docs    write what is generated in docs/
# All create .venv first. To use a torch of your own, create .venv and install it there: it is left alone.

PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch==2.13.0
# Processes that share the tests, with one thread each: tiny models make no use of more.
WORKERS ?= 2
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check

.PHONY: demo test test-all lint docs clean

demo: $(VENV)/demo.stamp
	$(VENV)/bin/specverify demo $(DEMO_ARGS)

test: lint
	OMP_NUM_THREADS=1 $(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile -m "not slow" $(PYTEST_ARGS)

test-all: lint
	OMP_NUM_THREADS=1 $(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile $(PYTEST_ARGS)

lint: $(VENV)/dev.stamp
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

docs: $(VENV)/dev.stamp
	$(PY) -c 'import pathlib; from hf_specverify import api_page, capabilities; \
		pathlib.Path("docs/api.md").write_text(api_page.markdown(), encoding="utf-8"); \
		pathlib.Path("docs/capabilities.md").write_text(capabilities.markdown(), encoding="utf-8")'

$(VENV)/demo.stamp: $(VENV)/torch.stamp pyproject.toml
	$(PIP) install -qq --editable '.[demo]'
	touch $@

$(VENV)/dev.stamp: $(VENV)/torch.stamp pyproject.toml
	$(PIP) install -qq --editable '.[dev]'
	touch $@

# The version that the project is tested with, where it is to be had for this Python; else pip's choice.
$(VENV)/torch.stamp: | $(PY)
	$(PY) -c 'import torch' 2>/dev/null || $(PIP) install '$(TORCH)' || $(PIP) install torch
	touch $@

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo 'Python 3.10 or newer is needed: make PYTHON=python3.12 ...' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './.git/*' -type d -prune -exec rm -rf {} +
