# make demo   sets up .venv and runs the main job
# make test   sets up .venv, then lint, types and tests
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

# One thread per worker: several busy processes with several threads each are far slower than with one.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint types clean

demo: $(READY)
	$(VENV)/bin/zoedge sweep --config examples/edge.toml --grid lr=2.5e-3,3e-3,4e-3 --jobs 3 --out out/demo

test: lint types
	$(VENV)/bin/pytest -n 2

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(READY)
	$(VENV)/bin/pyright

# torch comes first, by its exact pin: a package that asks for torch earlier may pull another build of it.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "zoedge needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt torch hatchling editables
	$(VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) out .pytest_cache .ruff_cache .hypothesis
