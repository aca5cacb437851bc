# Two commands on a fresh machine: `make demo` and `make test`. Both build .venv from the pinned versions, with the first
# Python >= 3.11 that can make one. Another one: `make demo PYTHON=/path/to/python`.
CANDIDATES := python3.11 python3.12 python3.13 python3 python
FITS := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for one in $(CANDIDATES); do "$$one" -c '$(FITS)' >/dev/null 2>&1 && echo "$$one" && break; done)
VENV := .venv
BIN := $(VENV)/bin
# Nothing is installed without the constraints: an unpinned torch brings gigabytes of CUDA packages.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
# Where the peers that need other versions are installed; CRFL_PEERS tells benchmarks.
PEERS ?= /tmp/crfl-peers
PIP := $(BIN)/python -m pip install --disable-pip-version-check

.PHONY: demo test lint types contracts unit wheel torture peers benchmarks certified site clean

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
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup

# The wheel as people get it: in environments of their own, without our constraints, with the newest versions that it
# allows and the oldest, on every Python that is here.
wheel:
	$(PYTHON) .ci/wheel.py --versions newest --versions oldest $(addprefix --python ,$(PYTHONS))

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
	CRFL_PEERS=$(PEERS) $(BIN)/python -m benchmarks rounds networks

benchmarks: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

# The examples with the strongest certificates, three seeds each, what attacks leave without one, and the figure of both;
# needs the files of MNIST, Fashion-MNIST, CIFAR-10 and loan, and the network of `crfl[encoders]`; hours the first time.
certified: $(VENV)/.installed
	$(BIN)/python examples/certified/table.py
	$(BIN)/python examples/certified/attacked.py
	$(BIN)/python examples/certified/attacked.py cifar --rules fedavg --attackers 1 5 --out runs/certified/cifar
	$(BIN)/python examples/certified/figure.py

# The documentation as a site, in build/site: hand-written pages, the reference and tables of every plugin and key.
site: $(VENV)/.installed-dev
	rm -rf build/docs
	$(BIN)/python -m docs.generate build/docs
	$(BIN)/sphinx-build -W --quiet build/docs build/site

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer with venv was found: name one, as in make demo PYTHON=/path/to/python" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) pip

# torch first, by exact version: the pinned build satisfies the range of every package that asks for it later.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing PyTorch and crfl into $(VENV), some minutes the first time ..."
	$(PIP) torch==2.13.0
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[encoders,flower,hf,mlflow,pandas,ray,tables,tensorboard,yaml]' --group dev
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
