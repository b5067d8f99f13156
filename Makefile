# The two commands are `make demo` and `make test`; everything they need they install themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
FRAMEWORKS := numpy torch tensorflow paddle
OLDER := avx2 sse
# TensorFlow and Paddle follow these settings in oneDNN alone.
NUMERICS_UNDER_avx2 := numpy torch paddle
NUMERICS_UNDER_sse := numpy torch
# By night the frameworks' own tests; of the slow ones those of torch's compiler.
NIGHT_UNDER_avx2 := test-tensorflow test-torch slow-torch test-paddle test-numpy test-native
NIGHT_UNDER_sse := test-torch test-numpy
NUMERICS_numpy := tests/numpy/test_numerics.py tests/numpy/test_nn.py
NUMERICS_torch := tests/torch/test_simulation.py
NUMERICS_tensorflow := tests/tensorflow/test_ops.py tests/tensorflow/test_simulation.py
NUMERICS_paddle := tests/paddle/test_rounding.py tests/paddle/test_ops.py tests/paddle/test_probing.py
ON_VIRTUAL_PADDLE := $(BIN)/python -W ignore tests/virtual_paddle/on_the_device.py
# Of torch's tests those that a device tells most of; night-cuda runs all.
ON_CUDA := ops regions lists scaler native_scaler updates gradients own_ops native_policy probing their_own_autocast their_own_scaler
SEARCHED := tensorflow torch paddle jax port numpy core lens docs examples compare devices
SEARCHING := HYPOTHESIS_PROFILE=nightly AMPBRIDGE_GROWTH_CALLS=300 AMPBRIDGE_BIT_FLIPS=10000 $(BIN)/python -m pytest -q -m search --timeout=10800 -o faulthandler_timeout=0
ZOO := torch tensorflow paddle jax flax_transformers keras_on_jax o2
MUTATED := core numpy torch tensorflow paddle jax
# The folders of tests that run as one group each; in some of them a part is slow.
FOLDERS := tensorflow torch paddle jax core port numpy docs examples compare lens
PARTLY_SLOW := tensorflow torch paddle jax docs examples core port compare numpy lens
# The core is tested alone, with no framework loaded, and with it the suite that tests adapters and the toy of the docs.
tests_of = tests/$(1) $(if $(filter core,$(1)),tests/conformance tests/toy)
# The longest groups go first.
TESTS := test-tensorflow test-torch types test-core test-paddle test-jax test-port test-docs test-native test-examples test-numpy test-compare test-lens test-virtual lint
NIGHT_TESTS := night-cuda $(MUTATED:%=mutate-%) $(ZOO:%=zoo-%) $(NIGHT_UNDER_avx2:%=avx2-%) $(SEARCHED:%=search-%) $(NIGHT_UNDER_sse:%=sse-%)
SLOW_TESTS := slow-native-tensorflow slow-native-torch $(PARTLY_SLOW:%=slow-%) test-cuda test-virtual-paddle test-zoo $(OLDER:%=test-%) test-loops

# A framework that is missing fails the tests instead of skipping them.
export AMPBRIDGE_REQUIRE ?= torch,tensorflow,paddle$(shell $(PYTHON) -c 'import sys; sys.version_info < (3, 11) or print(",jax")')
export TF_CPP_MIN_LOG_LEVEL ?= 3

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint types $(FOLDERS:%=test-%) $(PARTLY_SLOW:%=slow-%) test-native slow-native-torch slow-native-tensorflow test-virtual test-virtual-paddle test-cuda test-gpu test-loops $(OLDER:%=test-%) $(FRAMEWORKS:%=numerics-%) test-zoo zoo $(ZOO:%=zoo-%) nightly $(SEARCHED:%=search-%) night-cuda $(NIGHT_UNDER_avx2:%=avx2-%) $(NIGHT_UNDER_sse:%=sse-%) mutate $(MUTATED:%=mutate-%) bench bench-quick tables docs release-check format clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## train digits in float32 and under O1 float16, on NumPy alone
	@$(BIN)/ampbridge demo

# One line for each group at the end. OPTIONS=--keep keeps the times that the next run is compared with.
test: $(VENV)/.devices ## lint, types and all but the slow tests, one process per framework, four at a time
	+@$(PYTHON) scripts/run_groups.py $(OPTIONS) $(TESTS)

test-slow: $(VENV)/.devices ## the rest: what is marked slow, native kernels, virtual devices, older CPUs, some of the zoo
	+@$(PYTHON) scripts/run_groups.py $(OPTIONS) $(SLOW_TESTS)

lint: $(VENV)/.test ## ruff, formatting included, and the layers of the core
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.test ## mypy, strict on the core and on the adapters
	$(BIN)/mypy

# A static pattern: make looks for no implicit rule for phony targets, and would run nothing.
$(FOLDERS:%=test-%): test-%: $(VENV)/.test
	$(BIN)/python -m pytest -q -m 'not slow' $(call tests_of,$*)

$(PARTLY_SLOW:%=slow-%): slow-%: $(VENV)/.test
	$(BIN)/python -m pytest -q -m slow $(call tests_of,$*)

# `execution="auto"` is simulated in all other groups, whatever the CPU is (tests/conftest.py).
test-native: $(VENV)/.test ## the conformance suite on torch with native kernels, of any CPU
	AMPBRIDGE_CPU_EXECUTION=native $(BIN)/python -m pytest -q -m 'not slow' tests/torch/test_conformance.py

slow-native-torch slow-native-tensorflow: slow-native-%: $(VENV)/.test
	AMPBRIDGE_CPU_EXECUTION=native $(BIN)/python -m pytest -q -m 'not slow' tests/$*

test-loops: $(VENV)/.test ## the training loops of Lightning, Accelerate and Hugging Face
	$(BIN)/python -m pytest -q tests/loops

test-virtual: $(VENV)/.devices ## the virtual devices of torch and Paddle: that they work
	$(BIN)/python -m pytest -q -m 'not slow' -p ampbridge_rehearse.virtual_cuda.plugin tests/virtual_cuda
	$(BIN)/python -m pytest -q -m 'not slow' -p ampbridge_rehearse.virtual_cuda.extension_plugin tests/virtual_accelerator
	$(BIN)/python -m pytest -q -m 'not slow' tests/virtual_paddle

test-cuda: $(VENV)/.devices ## what torch does on CUDA, and on the device of an extension: devices whose memory and arithmetic are the CPU's
	$(BIN)/python -m pytest -q -p ampbridge_rehearse.virtual_cuda.plugin tests/virtual_cuda $(ON_CUDA:%=tests/torch/test_%.py)
	$(BIN)/python -m pytest -q -p ampbridge_rehearse.virtual_cuda.extension_plugin tests/virtual_accelerator

night-cuda: $(VENV)/.devices ## all of torch's tests on that device; which do not apply, and why
	$(BIN)/python -m pytest -q -p ampbridge_rehearse.virtual_cuda.plugin --junitxml build/night-cuda.xml tests/torch; \
	status=$$?; $(BIN)/python scripts/skipped_tests.py build/night-cuda.xml; exit $$status

# In the environment that is active: the pinned frameworks are builds for the CPU. docs/gpu.md.
test-gpu: ## on a real GPU: tests, bits, waits and times, with PYTHON's frameworks, as gpu-report.md
	$(PYTHON) scripts/gpu_report.py $(OPTIONS)

test-virtual-paddle: $(VENV)/.devices ## Paddle's GPU path, on a device whose memory is the host's
	$(BIN)/python -m pytest -q tests/virtual_paddle
	$(ON_VIRTUAL_PADDLE) -m pytest -q -m quick tests/zoo/test_paddle.py
	$(ON_VIRTUAL_PADDLE) -m pytest -q tests/paddle/test_lens.py tests/paddle/test_schedule.py tests/paddle/test_what_is_trained.py

test-zoo: $(VENV)/.test $(VENV)/.transformers-4 ## some of the zoo
	set -e; for each in $(ZOO); do $(BIN)/python -m pytest -q -m quick tests/zoo/test_$$each.py; done

zoo: $(VENV)/.test ## all models of other people's packages, one process per framework, two at a time
	+$(MAKE) --no-print-directory --jobs=2 $(ZOO:%=zoo-%)

zoo-flax_transformers: $(VENV)/.transformers-4

$(ZOO:%=zoo-%): zoo-%: $(VENV)/.test
	$(BIN)/python -m pytest -q tests/zoo/test_$*.py

$(OLDER:%=test-%): test-%: $(VENV)/.test
	$(BIN)/python scripts/as_older_cpu.py $* make --no-print-directory --keep-going $(NUMERICS_UNDER_$*:%=numerics-%)

# What depends on the CPU's instructions: products, roundings, kernels; not dtypes. Compilers take long, and are nightly.
$(FRAMEWORKS:%=numerics-%): numerics-%: $(VENV)/.test
	$(BIN)/python -m pytest -q -k 'not compiled and not XLA and not as_low_as' $(NUMERICS_$*)

nightly: $(VENV)/.devices $(VENV)/.mutate ## long random searches, the whole zoo, tests of frameworks as on older CPUs, mutations: an hour and a quarter
	+@$(PYTHON) scripts/run_groups.py $(OPTIONS) $(NIGHT_TESTS)

# Of `make test` and `make test-slow`, which each commit passes, what looks at more in the nightly profile.
search-devices: $(VENV)/.devices
	$(SEARCHING) -p ampbridge_rehearse.virtual_cuda.plugin tests/virtual_cuda
	$(SEARCHING) -p ampbridge_rehearse.virtual_cuda.extension_plugin tests/virtual_accelerator
	$(SEARCHING) tests/virtual_paddle

$(filter-out search-devices,$(SEARCHED:%=search-%)): search-%: $(VENV)/.test
	$(SEARCHING) $(call tests_of,$*)

$(NIGHT_UNDER_avx2:%=avx2-%): avx2-%: $(VENV)/.test
	$(BIN)/python scripts/as_older_cpu.py avx2 $(MAKE) --no-print-directory $*

$(NIGHT_UNDER_sse:%=sse-%): sse-%: $(VENV)/.test
	$(BIN)/python scripts/as_older_cpu.py sse $(MAKE) --no-print-directory $*

mutate: $(MUTATED:%=mutate-%) ## change the code in many places; for most changes a test has to fail

$(MUTATED:%=mutate-%): mutate-%: $(VENV)/.mutate
	$(BIN)/python scripts/mutate.py $*

bench: $(VENV)/.bench ## what ampbridge, simulation, the scaler and the lens cost, as ratios within one run
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/calls.py
	$(BIN)/python bench/simulated.py
	$(BIN)/python bench/scaler.py
	$(BIN)/python bench/masters.py
	$(BIN)/python bench/lens.py
	$(BIN)/python bench/sweep.py
	$(BIN)/python bench/host.py
	$(BIN)/python bench/imports.py

bench-quick: $(VENV)/.bench ## two minutes: which figures are worse than those that were kept last
	$(BIN)/python bench/quick.py

tables: $(VENV)/.test ## write the parts of docs/ that are made from code; asks all frameworks
	$(BIN)/python scripts/write_tables.py
	$(BIN)/python scripts/write_porting.py
	$(BIN)/python scripts/write_ops.py
	$(BIN)/python scripts/write_course.py

docs: $(VENV)/.docs ## build the site into site/, without the frameworks
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

release-check: $(VENV)/.release ## build wheel and sdist twice, check their metadata, run the wheel in empty environments
	$(BIN)/python scripts/release_check.py

format: $(VENV)/.test ## ruff's formatter and its safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environment and every cache
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "ampbridge needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml
	$(PIP) install -e .
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing the pinned frameworks (some minutes the first time)"
	$(PIP) install --constraint constraints.txt -e '.[frameworks]'
	$(PIP) install --constraint constraints.txt -e '.[test,examples,report,port,docs,zoo]'
	@touch $@ $(VENV)/.demo $(VENV)/.docs

$(VENV)/.docs: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install --constraint constraints.txt -e '.[docs]'
	@touch $@ $(VENV)/.demo

# Without a compiler there are none; the tests that need them say so.
$(VENV)/.devices: $(VENV)/.test
	@echo "compiling the virtual devices (two minutes the first time)"
	-$(BIN)/python -c "from ampbridge_rehearse import virtual_cuda; virtual_cuda.install()"
	-$(BIN)/python -W ignore tests/virtual_paddle/building.py
	@touch $@

# Its models in flax import neither torch nor what else it would bring.
$(VENV)/.transformers-4: $(VENV)/.test tests/zoo/transformers-4.txt
	$(PIP) install --no-deps --upgrade --target $(VENV)/transformers-4 --requirement tests/zoo/transformers-4.txt
	@touch $@

$(VENV)/.mutate: $(VENV)/.test
	$(PIP) install --constraint constraints.txt -e '.[mutate]'
	@touch $@

$(VENV)/.release: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install --constraint constraints.txt -e '.[release]'
	@touch $@ $(VENV)/.demo

$(VENV)/.bench: $(VENV)/.test
	$(PIP) install --constraint constraints.txt -e '.[bench]'
	@touch $@
