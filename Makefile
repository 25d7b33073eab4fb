# `make demo` and `make test` do everything on a machine that has only Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: demo test bench results lint browser clean

demo: $(INSTALLED)
	$(BIN)/python launch.py --config=configs/glyphs.py

test: $(INSTALLED) lint browser
	$(BIN)/python -m pytest -n auto --dist loadfile  # a file's runs are made once, by one worker

# Against other simulators, which it installs beside; an hour. The tables are also in runs/bench as JSON.
bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

# The paper's tables and figures on glyphs, as docs/results.md has them: three to four hours on two cores. Stopped and
# started again, it goes on where it was.
SWEEP := $(BIN)/python launch.py --mode=sweep --jobs=2
results: $(INSTALLED)
	$(SWEEP) --config=configs/sweeps/glyphs_classification.py --workdir=runs/g1
	$(SWEEP) --config=configs/sweeps/glyphs.py --workdir=runs/g2
	$(SWEEP) --config=configs/sweeps/glyphs_overfitting.py --workdir=runs/g4
	$(BIN)/python -m fedss_jax.analysis.gradient_noise 'runs/g2/method=fedss,num_negatives=20,seed=0'
	$(BIN)/python -m fedss_jax.analysis.traffic --figure=docs/results/share.svg
	for shown in docs/results/g?-*.svg; do name=$${shown##*/}; cp runs/$${name%%-*}/figures/$${name#*-} $$shown; done
	cp 'runs/g2/method=fedss,num_negatives=20,seed=0'/gradient_noise_*.svg docs/results

# The tests open pages in Debian's Chromium. Who is not root is told how to get it.
browser:
	@command -v "$${CHROMIUM:-chromium}" >/dev/null || command -v chromium-browser google-chrome >/dev/null \
	|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -qqy chromium >/dev/null; } \
	|| { echo "the tests of pages need Chromium: apt-get install chromium, or set CHROMIUM to a browser of its kind" >&2; exit 1; }

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
