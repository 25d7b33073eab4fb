# `make demo` and `make test` do everything on a machine that has only Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: demo test bench lint clean

demo: $(INSTALLED)
	$(BIN)/python launch.py --config=configs/glyphs.py

test: $(INSTALLED) lint
	$(BIN)/python -m pytest -n auto

# Against other simulators, which it installs beside; an hour. The tables are also in runs/bench as JSON.
bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Made again whenever what is to be installed changes.
$(INSTALLED): setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf .venv benchmarks/.venvs runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
