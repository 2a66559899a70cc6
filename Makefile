# Wirehare. `make demo` to see it work, `make test` to check it; both set up what they need in .venv, once.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
SOURCES := wirehare.py $(shell find codec udfs pipeline jobs -type f -not -path '*/__pycache__/*')
KERNELS := udfs/warm.py $(shell find codec -name '*.py')
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet

# The path of the sources, which Python searches: `import wirehare` works also in the directory above a clone.
PLAIN := --config-settings editable_mode=compat

# Many containers set it. The packages come without byte code: each of the processes that the tests start would compile
# again what it imports, for a second or two.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
# Two installs into one environment must not run at once.
.NOTPARALLEL:
.PHONY: help demo spark-demo kernels test lint types tests bench cluster-test browser-test notebook notebook-test readme-test dist-test wheel-test matrix slow-test law-test fuzz ledger dist format clean java

help:  ## what can be made
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: .venv/runtime  ## decode and audit the captures in samples/: tables in out/, report in out.html
	@$(BIN)/wirehare nightly samples --output out --overwrite --report out.html --title "The samples of Wirehare" --fail-on never
	@test -e .venv/kernels || echo "For larger captures: make kernels compiles the decoder (minutes, once)"
	@echo "This ran without Java. Spark needs Java 17 or later: for captures above 4 GB, on a cluster, in notebooks (make spark-demo)"

spark-demo: java .venv/runtime  ## the same through spark-submit, to out-spark/; and whether tables and findings are equal
	@test -d out/findings || $(MAKE) --no-print-directory demo
	@PATH="$(CURDIR)/$(BIN):$$PATH" spark-submit --master 'local[2]' jobs/nightly.py samples --output out-spark --overwrite --report out-spark.html --title "The samples of Wirehare" --fail-on never
	@$(BIN)/python tools/same_tables.py out out-spark

kernels: .venv/kernels  ## compile kernels, which large captures need
	@! $(JAVA) -version > /dev/null 2>&1 || $(MAKE) --no-print-directory .venv/classes

# Kernels need no tool of the tests: they are compiled while those are installed, which is work for one core, as are
# the JVM's classes.
test: BYTECODE := --no-compile
test: java .venv/runtime  ## check style, types and behaviour
	@$(MAKE) --no-print-directory .venv/kernels & made=$$!; \
		$(MAKE) --no-print-directory lint types .venv/classes; checked=$$?; \
		wait $$made && exit $$checked
	@$(MAKE) --no-print-directory tests

lint: java .venv/dev  ## check style only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: java .venv/dev  ## check types only
	$(BIN)/mypy

tests: java .venv/dev .venv/kernels .venv/classes  ## run the tests only
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations 40

bench: java .venv/dev .venv/kernels .venv/classes  ## measure side by side with other tools (an hour)
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.kernels
	$(BIN)/python -m benchmarks.flows
	$(BIN)/python -m benchmarks.audit
	$(BIN)/python -m benchmarks.functions
	$(BIN)/python -m benchmarks.start

cluster-test: java .venv/dev .venv/kernels .venv/packed/environment.tar.gz  ## packaged jobs on a cluster of this machine; kills workers, executors, drivers
	$(BIN)/python -m pytest -q -m cluster tests/cluster

browser-test: java .venv/dev .venv/browser  ## the report and saved pictures in Chromium, which has to be there with its driver
	$(BIN)/python -m pytest -q tests/browser

LAB ?=
notebook: java .venv/notebook .venv/kernels .venv/classes  ## open the notebooks in Jupyter Lab (LAB='--no-browser --port=8899')
	$(BIN)/jupyter lab $(LAB) notebooks

notebook-test: java .venv/dev .venv/kernels .venv/classes  ## run every notebook from its first cell to its last
	$(BIN)/python -m pytest -q --nbmake --nbmake-timeout=600 notebooks

readme-test: java .venv/dev .venv/kernels .venv/classes  ## run every command and snippet of the README, from top to bottom
	$(BIN)/python -m pytest -q -m readme tests/project/test_readme.py

dist-test: java .venv/dev  ## build the distributions, install the wheel elsewhere, run the demo there
	$(BIN)/python -m pytest -q -m dist tests/project/test_distribution.py

wheel-test: java .venv/dev .venv/kernels  ## install the wheel with kernels of `make dist` elsewhere; time, rows
	$(BIN)/python -m pytest -q -m wheel tests/project/test_distribution.py

PYTHONS ?= python3.11 python3.12 python3.13
dist: .venv/dev  ## build the sdist and wheels in dist/: one without machine code, and one with it for each Python here (minutes each)
	$(BIN)/python -m build
	$(BIN)/python tools/wheels.py dist $(PYTHONS)

matrix: java  ## a short form of the tests under each Python here, and Spark under each Java (minutes each)
	$(PYTHON) tools/matrix.py $(PYTHONS)

slow-test: java .venv/dev .venv/kernels  ## tests with all of their inputs and all kernels compiled (slow)
	$(BIN)/python -m pytest -q -n 2 -m slow
	COMPILE_ALL=1 $(BIN)/python -m pytest -q -n 2 tests/codec tests/pipeline/test_field_table.py tests/pipeline/test_variant.py

law-test: .venv/dev .venv/kernels  ## decode every capture of the tests in pieces of one packet, with states carried (slow)
	$(BIN)/python -m pytest -q -n 2 -m law tests/pipeline/test_tables_of.py

FUZZ_INPUTS ?= 120000
fuzz: .venv/dev .venv/kernels  ## damaged captures and logins through kernels in three modes, and lakes with planted files (slow; FUZZ_INPUTS=120000)
	$(BIN)/python tests/support/fuzz_modes.py --inputs $(FUZZ_INPUTS)
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -q -W ignore -m slow tests/jobs/test_lake_planted.py

LEDGER ?= --messages 1000000
NPM_CLIENTS := amqplib rabbitmq-client rhea
ledger: .venv/dev .venv/kernels .venv/ledger  ## real brokers and clients, whose accounts are compared with the tables (LEDGER='--messages 20000 --root / --root /srv/trixie')
	$(BIN)/python tests/ledger/run.py --node-modules .venv/node_modules $(LEDGER)

format: .venv/dev  ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and all output
	rm -rf .venv out out.html out-spark out-spark.html lake build dist *.egg-info spark-warehouse .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Spark runs on Java; say so before anything is downloaded.
java:
	@major=$$($(JAVA) -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'); \
	if [ "$${major:-0}" -lt 17 ]; then \
		echo "Spark needs Java 17 or later: install it (Debian, Ubuntu: apt install default-jre-headless; Fedora: dnf install java-latest-openjdk-headless; macOS: brew install openjdk) or set JAVA_HOME." >&2; \
		exit 1; \
	fi

.venv/bin/python:
	@if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		echo "Wirehare needs Python 3.11 or later: install it, or name it with make PYTHON=/path/to/python3.11." >&2; \
		exit 1; \
	fi
	@echo "Making .venv"
	@"$(PYTHON)" -m venv .venv || { \
		rm -rf .venv; \
		echo "No environment could be made: see above (Debian, Ubuntu: apt install python3-venv), then run make again." >&2; \
		exit 1; \
	}

# The stamps say which set of packages stands in .venv.
.venv/runtime: pyproject.toml | .venv/bin/python
	@echo "Installing wirehare into .venv (pyspark is large: a minute or two)"
	@started=$$(date +%s); $(PIP) install $(BYTECODE) $(PLAIN) --editable . && echo "Installed in $$(($$(date +%s) - started)) s"
	@$(BIN)/python -m compileall -q wirehare.py codec udfs pipeline jobs
	@touch $@

# Without byte code, which takes pip as long as all else: Python writes that of the modules that are imported.
.venv/dev: pyproject.toml | .venv/bin/python
	@echo "Installing wirehare and the tools of its tests into .venv"
	@$(PIP) install --no-compile $(PLAIN) --editable '.[dev]'
	@touch .venv/runtime $@

.venv/notebook: pyproject.toml | .venv/runtime
	@echo "Installing Jupyter Lab into .venv"
	@$(PIP) install $(PLAIN) --editable '.[notebook]'
	@touch $@

.venv/browser: pyproject.toml | .venv/dev
	@$(PIP) install $(PLAIN) --editable '.[browser]'
	@touch $@

# The libraries of Node.js are left out where there is no npm.
.venv/ledger: pyproject.toml | .venv/dev
	@$(PIP) install $(PLAIN) --editable '.[ledger]'
	@! command -v npm > /dev/null || npm install --silent --no-save --prefix .venv $(NPM_CLIENTS)
	@touch $@

# Kernels are compiled once and cached beside their sources, so that the first decode is as fast as the second. The cache
# of a kernel does not notice that another one which it calls has changed: after any change all are compiled anew.
.venv/kernels: $(KERNELS) | .venv/runtime
	@echo "Compiling kernels (two to ten minutes, once)"
	@find codec -name '*.nb[ic]' -delete
	@started=$$(date +%s); $(BIN)/python -m udfs.warm && echo "Compiled in $$(($$(date +%s) - started)) s"
	@$(BIN)/python -m compileall -q codec udfs pipeline jobs
	@touch $@

# What a cluster's executors get, made by the commands of docs/deployment.md; it has kernels of its own to compile.
.venv/packed/environment.tar.gz: pyproject.toml docs/deployment.md $(SOURCES) | .venv/dev
	@echo "Packing the environment of executors (minutes)"
	@$(BIN)/python tests/support/deployment.py $(@D)

# The JVM finds its classes laid out and starts in half the time; without the archive all works the same.
.venv/classes: pipeline/class_archive.py .venv/runtime
	@echo "Preparing the JVM's classes (half a minute, once)"
	@$(BIN)/python -m pipeline.class_archive samples || echo "No class archive could be made; Spark starts without one" >&2
	@touch $@
