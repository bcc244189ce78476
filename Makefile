# Each target makes the virtual environment it needs. `make demo` installs what running takes, the others what
# developing takes.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: demo test test-slow lint bench site wheel clean

demo: $(VENV)/.run
	$(BIN)/hop demo $(ARGS)

# Two files at a time, each by one process; ARGS="-n 8" takes more of a larger machine.
test: $(VENV)/.dev
	$(BIN)/pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# The demo, the pages' commands, kills, a real server, PLAID: they say why they are worth their minutes.
test-slow: $(VENV)/.dev
	$(BIN)/pytest -m slow $(ARGS)

lint: $(VENV)/.dev wheel
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --python-executable build/wheel-venv/bin/python -p hoptimizer
	$(BIN)/mypy --python-executable build/wheel-venv/bin/python benchmarks

# DATA: the folder of the published data sets' folders, which benchmarks/retrieval.py describes; PEERS: other engines, as
# benchmarks/all.py takes them.
bench: $(VENV)/.dev
	@test -n "$(DATA)" || (echo "make bench: name the data sets' folder, as in make bench DATA=../data"; exit 2)
	$(BIN)/python benchmarks/all.py --data $(DATA) $(PEERS)

# The documentation in build/site. Docstrings are read from the wheel, where the folders are one package.
site: $(VENV)/.dev wheel
	$(BIN)/python -m zipfile -e build/dist/*.whl build/wheel
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# The built wheel in an environment of its own: the type checker reads it there, so a file that the wheel lacks is
# an import error. Its dependencies are lent by the main environment.
wheel: $(VENV)/.dev
	rm -rf build && $(BIN)/python -m build --wheel --outdir build/dist . > build.log 2>&1 || (cat build.log; exit 1)
	rm build.log
	$(PYTHON) -m venv --without-pip build/wheel-venv
	$(BIN)/python -m pip --disable-pip-version-check --quiet --python build/wheel-venv install --no-deps build/dist/*.whl
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	  > $$(build/wheel-venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/lent.pth
	cd build && wheel-venv/bin/hop --help > /dev/null

$(VENV)/.run: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): takes some minutes"
	$(PIP) install --constraint constraints.txt torch
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build .benchmarks
