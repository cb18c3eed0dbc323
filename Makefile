# Everything is built in one profile (release): torch-sys compiles 4 minutes of C++ for each profile that is used.
# No target needs more in the environment than PATH and HOME. LIBTORCH, where it is set, is respected.

SHELL := /bin/bash
TARGET := $(or $(CARGO_TARGET_DIR),target)
BIN := $(TARGET)/release
PYTHON := python3
# Programs and tests find LibTorch by their rpath; documentation tests have none.
TORCH_LIB := $(or $(LIBTORCH_LIB),$(LIBTORCH),$(CURDIR)/.libtorch)/lib
WITH_TORCH := LD_LIBRARY_PATH="$(TORCH_LIB)$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}"

export PYTHONDONTWRITEBYTECODE := 1
.DEFAULT_GOAL := help
.PHONY: help demo viewer build libtorch test lint fmt python-tests viewer-tests clippy doc-lint torch-tests \
	acceptance corpus fixtures bench gpu-check docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build ## train with a planted fault, watch it live, print what was found
	@probes/trainer/demo.sh "$(BIN)"

viewer: ## build the viewer alone; it needs no LibTorch
	cargo build --release

build: libtorch ## build everything
	@probes/torch/build.sh "$(TARGET)"

libtorch: ## fetch LibTorch into .libtorch, once
	@$(PYTHON) probes/torch/fetch_libtorch.py

test: fmt python-tests viewer-tests clippy doc-lint torch-tests ## all that CI runs, the cheap checks first

lint: fmt clippy doc-lint ## formatting, clippy, documentation

fmt:
	cargo fmt --all --check

python-tests:
	$(PYTHON) -m unittest discover -s probes/torch
	$(PYTHON) -m unittest discover -s probes/trainer

# Alone, in front of everything that waits for LibTorch.
viewer-tests:
	cargo check --release --lib --no-default-features
	cargo test --release --quiet

clippy: build
	cargo clippy --release --workspace --all-targets -- -D warnings

doc-lint: build
	RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps

# Last, so that the summary of the tests is what a log ends with.
torch-tests: build
	$(WITH_TORCH) cargo test --release --workspace

acceptance: build ## the long checks; stopped, it goes on where it was
	@$(PYTHON) probes/trainer/acceptance --bin "$(BIN)"

corpus: build ## judge the doctor on faulty and on healthy runs, into docs/diagnosis.md; stopped, it goes on where it was
	@$(PYTHON) probes/trainer/corpus --bin "$(BIN)" --page docs/diagnosis.md

fixtures: build ## renew fixtures/corpus, the small recordings that `make test` replays
	@$(PYTHON) probes/trainer/corpus --bin "$(BIN)" --fixtures fixtures/corpus

bench: build ## what the doctor costs, and how fast the scan is, into docs/overhead.md; 25 minutes, on a machine that does nothing else
	cargo bench --bench scan
	$(WITH_TORCH) "$(BIN)/ampdoctor-bench" --page docs/overhead.md

gpu-check: build ## with a GPU and a LibTorch with CUDA: does the observer find there what it finds here, and at what cost
	$(WITH_TORCH) "$(BIN)/ampdoctor-gpu-check"

docs: build ## the documentation of the API, in target/doc
	cargo doc --release --workspace --no-deps

clean: ## remove what was built and recorded; LibTorch stays
	cargo clean
	rm -rf runs acceptance corpus
