# `make test` and `make demo` do everything on a machine that has Python 3.11 and make.
PYTHON ?= python3.11
BIN := .venv/bin
READY := .venv/.ready

.PHONY: test lint types unit demo docs bench clean
.DEFAULT_GOAL := help

help:
	@echo "make test   lint, types and all tests"
	@echo "make demo   train a SimNet on the embedded digits and show its report"
	@echo "make docs   build the documentation: docs/_build/html/index.html"

# The exact versions that were tested; torch in particular, whose newer builds bring CUDA along.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,onnx,tensorboard,docs]"
	@touch $@

test: lint types unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# Two workers, one thread each: the tests are many and small. With SciPy's switch scikit-learn runs all its checks.
unit: $(READY)
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 SCIPY_ARRAY_API=1 $(BIN)/pytest -n 2 --dist worksteal

demo: $(READY)
	$(BIN)/python -m simnets train --data digits --out runs/demo --seed 0

docs: $(READY)
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

clean:
	rm -rf .venv build dist *.egg-info docs/_build
