# Two commands on a fresh machine: `make demo` and `make test`. Both build .venv from the pinned versions.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Nothing is installed without the constraints: an unpinned torch brings gigabytes of CUDA packages.
export PIP_CONSTRAINT := constraints.txt
# Where the peers that need other versions are installed; CRFL_PEERS tells benchmarks.
PEERS ?= /tmp/crfl-peers
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint types contracts unit torture peers benchmarks certified site clean

demo: $(VENV)/.installed
	$(BIN)/crfl demo --out runs/demo

test: lint types contracts unit

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

contracts: $(VENV)/.installed-dev
	$(BIN)/lint-imports

unit: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --numprocesses 2

# Kills, full disks, power cuts, two writers and more at random moments: every run must end as if nothing had happened.
torture: $(VENV)/.installed-dev
	$(BIN)/python -m tests.torture --faults 300 --seed 0

# Adds the two libraries that we compare kernels with; ByzFL without torchvision, which its kernels do not need. Rounds are
# compared with those of pfl-research and ByzFL in an environment of their own: pfl needs another NumPy.
peers: $(VENV)/.installed-dev
	$(PIP) flwr==1.41.0
	$(PIP) --no-deps byzfl==0.0.11
	$(BIN)/python -m pytest tests/aggregators/test_peers.py
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	PIP_CONSTRAINT= $(PEERS)/bin/python -m pip install --quiet torch==2.13.0 'numpy<2' scipy pfl==0.6.0
	PIP_CONSTRAINT= $(PEERS)/bin/python -m pip install --quiet --no-deps byzfl==0.0.11
	CRFL_PEERS=$(PEERS) $(BIN)/python -m benchmarks rounds

benchmarks: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

# The examples with the strongest certificates, three seeds each, what attacks leave without one, and the figure of both;
# needs the files of MNIST, Fashion-MNIST and loan.
certified: $(VENV)/.installed
	$(BIN)/python examples/certified/table.py
	$(BIN)/python examples/certified/attacked.py
	$(BIN)/python examples/certified/figure.py

# The documentation as a site, in build/site: hand-written pages, the reference and tables of every plugin and key.
site: $(VENV)/.installed-dev
	rm -rf build/docs
	$(BIN)/python -m docs.generate build/docs
	$(BIN)/sphinx-build -W --quiet build/docs build/site

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch first, by exact version: the pinned build satisfies the range of every package that asks for it later.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) torch==2.13.0
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
