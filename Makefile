# Each target does all of its own set-up: Python 3.11 or newer and make are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO_ARGS ?=
CLIENTS ?= triton kserve openapi registry producers beam store
TESTS ?= $(CLIENTS:%=% or) none
RECORDS ?= 1000000
SEEDS ?= 200
SECONDS ?= 3600
FIRST ?= $(shell date +%s)
ROUNDS ?= 5
# What is imported is compiled then, once; to compile all that is installed would double the time this takes.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := install --quiet --disable-pip-version-check --no-compile

.PHONY: demo demos test screenshots states contract mlflow tgb slow fences simulate fuzz trials mutants lint bench bench-smoke bench-compare figures docs helm wheel proto clean keys image image-release sign pin-base wheels-arm64 containers leaders

demo: $(VENV)/.demo
	$(BIN)/streamd demo $(DEMO_ARGS)

# The first day of each stream, and of one on the stand-in where the others are on Apache Kafka.
demos: demo-wikipedia demo-taxi demo-mathoverflow $(if $(KAFKA_HOME),demo-standin)

FIRST_DAY := --days 1 --speed max --exit --port 0
demo-standin: $(VENV)/.demo
	env -u KAFKA_HOME $(BIN)/streamd demo --stream wikipedia $(FIRST_DAY)

demo-%: $(VENV)/.demo
	$(BIN)/streamd demo --stream $* $(FIRST_DAY)

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 3 --dist loadfile

# Brokers that live a minute: Java's second compiler would take half of the CPU that one uses.
demos test contract slow fences bench bench-smoke bench-compare figures: export JDK_JAVA_OPTIONS ?= -XX:TieredStopAtLevel=1 -XX:+UseSerialGC

# Clients that others wrote, serializers of a schema registry, Apache Beam's runners, S3; CLIENTS=openapi for that one alone.
contract: $(VENV)/.dev $(CLIENTS:%=$(VENV)-contract-%/.made)
	$(BIN)/python -m pytest -m contract tests/contracts/test_clients.py tests/contracts/test_from_your_app.py tests/contracts/test_producers.py \
	  tests/contracts/test_beam.py tests/contracts/test_store.py -k "$(TESTS)"

# MLflow's client, some 90 MB, writes to a folder, and to a server in an environment of its own.
mlflow: $(VENV)/.dev $(VENV)-mlflow/bin/mlflow
	$(BIN)/python -m pip $(INSTALL) -c constraints.txt -e '.[mlflow]'
	MLFLOW_SERVER=$(VENV)-mlflow/bin/mlflow $(BIN)/python -m pytest -rs tests/evaluation/test_mlflow.py

$(VENV)-mlflow/bin/mlflow:
	$(PYTHON) -m venv $(VENV)-mlflow
	$(VENV)-mlflow/bin/python -m pip $(INSTALL) 'mlflow>=3.5,<4'

# The default model on tgbl-wiki, its scores ranked by the Temporal Graph Benchmark's own Evaluator.
tgb: $(VENV)/.bench $(VENV)-tgb/.made
	$(BIN)/python -m tests.benchmarks.tgb --save $(VENV)-tgb
	$(VENV)-tgb/bin/python tests/benchmarks/peers/tgb_evaluator.py $(VENV)-tgb/validation.npz

# The pictures of the status page in the README, after some days of the demo's stream.
screenshots: $(VENV)/.dev
	SCREENSHOTS=docs/images $(BIN)/python -m pytest -m slow -k screenshots --timeout 3600 tests/server/test_page.py

# The status page in each of its states, for eyes to look at.
states: $(VENV)/.dev
	mkdir -p build/states
	PICTURES=build/states $(BIN)/python -m pytest -m 'slow or not slow' tests/server/test_page_states.py

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow --timeout 3600

# Two live leaders on three brokers, one of them stopped amid a commit while the other takes over.
fences: $(VENV)/.dev
	FENCE_SEEDS=$(SEEDS) $(BIN)/python -m pytest -m slow -s --timeout 3600 tests/replica/test_fences.py

# Roles in one process, with a broker, disks, networks and clocks that go wrong, under new seeds for an hour; FIRST=7 begins with seed 7.
simulate: $(VENV)/.dev
	$(BIN)/python -m tests.simulator 1000000000 $(FIRST) --cpu-seconds $(SECONDS)

# Hostile records of topics in a shape of their own, and rows of files and topics in every format; each run draws others.
fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.decode.fuzz $(RECORDS)
	$(BIN)/python -m tests.exchange.fuzz $(RECORDS)

# Trials with and without a difference between their arms.
TRIALS ?= 2000
trials: $(VENV)/.dev
	$(BIN)/python -m tests.trials.simulation $(TRIALS)

mutants: $(VENV)/.dev $(VENV)-mutants/bin/cosmic-ray
	$(VENV)-mutants/bin/python tests/mutants.py $(BIN)/python

lint: $(VENV)/.dev
	$(BIN)/ruff check streamd tests docs
	$(BIN)/ruff format --check --quiet streamd
	$(BIN)/mypy

# docs/figures.md: every part but those of a GPU, one after the other, on a machine that does nothing else; FIGURES="graph ingest" for some.
figures: $(VENV)/.bench
	$(BIN)/python -m tests.benchmarks.page $(FIGURES)

bench: $(VENV)/.bench
	$(BIN)/python -m tests.benchmarks

# Every benchmark at a tiny scale: it runs, its rows are there, its children end. `make test` runs the quick ones.
bench-smoke: $(VENV)/.bench
	$(BIN)/python -m pytest -m 'slow or not slow' --timeout 900 tests/benchmarks/test_smoke.py

# Two commits in turn on this machine: make bench-compare BASE=HEAD~50 PARTS='graph serving'
PARTS ?= graph training serving ingest
bench-compare: $(VENV)/.bench
	$(BIN)/python -m tests.benchmarks.compare $(BASE) $(PARTS) --rounds $(ROUNDS)

# The documentation as a site, build/docs/site: every link leads somewhere, and it asks no other server for anything.
docs: $(VENV)/.dev $(VENV)-docs/.made
	$(BIN)/python docs/site/prepare.py build/docs
	cd build/docs && $(abspath $(VENV)-docs)/bin/zensical build --strict --clean
	DOCS_SITE=build/docs/site $(BIN)/python -m pytest tests/docs/test_site.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The constraints file pins what CI installs; see CONTRIBUTING.md for installing without it.
$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip $(INSTALL) -c constraints.txt -e '.[demo]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip $(INSTALL) -c constraints.txt -e '.[demo,dev,arrow]'
	touch $@ $(VENV)/.demo

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip $(INSTALL) -c constraints.txt -e '.[demo,dev,arrow,bench]'
	touch $@ $(VENV)/.dev $(VENV)/.demo

# The mutation tool has an environment of its own: it only draws and writes code.
# The descriptor of TensorFlow GNN's messages, which the package reads, after a change of the .proto.
TFGNN := streamd/tfgnn/schema/tfgnn
proto:
	$(PYTHON) -m venv $(VENV)-proto
	$(VENV)-proto/bin/python -m pip $(INSTALL) 'grpcio-tools==1.85.1'
	$(VENV)-proto/bin/python -m grpc_tools.protoc -I. --descriptor_set_out=$(TFGNN).binpb $(TFGNN).proto

$(VENV)-mutants/bin/cosmic-ray:
	$(PYTHON) -m venv $(VENV)-mutants
	$(VENV)-mutants/bin/python -m pip $(INSTALL) 'cosmic-ray==8.7.0'

# Each client has an environment of its own, in which nothing of streamd is.
$(VENV)-contract-%/.made: tests/contracts/clients/%.txt | $(VENV)/bin/python
	$(PYTHON) -m venv --without-pip $(@D)
	$(BIN)/python -m pip --python $(@D)/bin/python $(INSTALL) --no-deps -r $<
	touch $@

# The Helm chart: rendered by Helm's own engine, checked against Kubernetes' schemas, compared with kustomize's overlays.
helm: $(VENV)/.dev $(VENV)-helm/.made
	HELM_PYTHON=$(abspath $(VENV)-helm)/bin/python $(BIN)/python -m pytest tests/deploy/test_helm.py

# The wheel and the source in dist/, with a list of all that an installation brings (SBOM, CycloneDX). It is installed into an
# empty environment, with what it asks for as pinned, which takes minutes.
wheel: $(VENV)/.dev $(VENV)-release/.made
	rm -rf dist build/lib build/bdist.* $(VENV)-wheel
	$(VENV)-release/bin/python -m build --no-isolation --outdir dist .
	$(VENV)-release/bin/python -m twine check --strict dist/*
	$(PYTHON) -m venv --without-pip $(VENV)-wheel
	$(BIN)/python -m pip --python $(VENV)-wheel/bin/python $(INSTALL) -c constraints.txt dist/*.whl
	$(VENV)-release/bin/python -m cyclonedx_py environment $(VENV)-wheel --pyproject pyproject.toml --output-reproducible \
	  --output-format JSON --output-file dist/streamd-$(VERSION).cdx.json
	WHEEL_DIST=dist WHEEL_BIN=$(abspath $(VENV)-wheel)/bin $(BIN)/python -m pytest tests/deploy/test_wheel.py

# The site's builder has many packages of its own, and reads the code without importing it.
$(VENV)-docs/.made: docs/site/requirements.txt | $(VENV)/bin/python
	$(PYTHON) -m venv --without-pip $(@D)
	$(BIN)/python -m pip --python $(@D)/bin/python $(INSTALL) --no-deps -r $<
	touch $@

$(VENV)-helm/.made: tests/deploy/helm.txt | $(VENV)/bin/python
	$(PYTHON) -m venv --without-pip $(@D)
	$(BIN)/python -m pip --python $(@D)/bin/python $(INSTALL) --no-deps -r $<
	touch $@

$(VENV)-release/.made: deploy/release.txt | $(VENV)/bin/python
	$(PYTHON) -m venv --without-pip $(@D)
	$(BIN)/python -m pip --python $(@D)/bin/python $(INSTALL) --no-deps -r $<
	touch $@

$(VENV)-resolver/.made: deploy/resolver.txt | $(VENV)/bin/python
	$(PYTHON) -m venv --without-pip $(@D)
	$(BIN)/python -m pip --python $(@D)/bin/python $(INSTALL) --no-deps -r $<
	touch $@

$(VENV)-tgb/.made: tests/benchmarks/peers/tgb.txt | $(VENV)/bin/python
	$(PYTHON) -m venv --without-pip $(@D)
	$(BIN)/python -m pip --python $(@D)/bin/python $(INSTALL) --no-deps -r $<
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-mutants $(VENV)-contract-* $(VENV)-tgb $(VENV)-docs $(VENV)-helm $(VENV)-release $(VENV)-resolver $(VENV)-wheel dist build *.egg-info

# Keys for deploy/compose.yaml, new ones each time it is asked for and there are none.
keys:
	@test ! -e deploy/secrets || { echo "deploy/secrets is there already; remove it for new keys"; exit 1; }
	@umask 077; mkdir deploy/secrets; for name in metrics_key admin_keys grafana_password; do \
	  $(PYTHON) -c "import secrets; print(secrets.token_urlsafe(24))" > deploy/secrets/$$name; done; \
	  $(PYTHON) -c "import secrets; print(secrets.token_urlsafe(24))" > deploy/secrets/api_keys; \
	  cat deploy/secrets/metrics_key >> deploy/secrets/api_keys; chmod 644 deploy/secrets/*
	@echo "deploy/secrets: api_keys (the first for callers, the second for Prometheus), admin_keys, metrics_key, grafana_password"

# The image, by DOCKER, which may be podman: its own format of images has no health check. TORCH_INDEX: a package index of torch for the CPU;
# SOURCE: address of the repository, for its label; PLATFORM: as linux/arm64, with CPU=generic; CPU: for which kernels are compiled in it.
DOCKER ?= docker
TARGET ?= cpu
TORCH_INDEX ?=
EXTRAS ?= arrow
SOURCE ?=
PLATFORM ?=
CPU ?= x86-64-v3
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' streamd/__init__.py)
REVISION := $(shell git rev-parse HEAD 2>/dev/null)
TAG = $(VERSION)$(if $(filter cuda,$(TARGET)),-cuda)
IMAGE = -f deploy/Dockerfile --build-arg PACKAGES="$(TARGET)" --build-arg TORCH_INDEX="$(TORCH_INDEX)" \
  --build-arg EXTRAS="$(EXTRAS)" --build-arg VERSION="$(VERSION)" --build-arg REVISION="$(REVISION)" \
  --build-arg SOURCE="$(SOURCE)" --build-arg CPU="$(CPU)" $(if $(PLATFORM),--platform $(PLATFORM))
image:
	$(DOCKER) build $(if $(findstring podman,$(DOCKER)),--format docker) $(IMAGE) -t streamd:$(TAG) .

# The image in containers, by docker or podman, whichever answers, with compose: below 15 minutes. SHORT=1 before each release.
containers: $(VENV)/.dev
	CONTAINERS=1 SHORT=$(SHORT) IMAGE=$(IMAGE_TESTED) $(BIN)/python -m pytest -s tests/deploy/test_containers.py

# Two machines that may lead and two replicas, in containers: six changes of leader while a window closes each minute.
leaders: $(VENV)/.dev
	LEADERS=1 IMAGE=$(IMAGE_TESTED) $(BIN)/python -m pytest -s tests/deploy/test_leaders.py

# The image with an SBOM and its provenance, built by buildx with the container driver and pushed to REGISTRY; build/image.json has its
# digest. Nobody has run this one or the next yet.
REGISTRY ?=
image-release:
	@test -n "$(REGISTRY)" || { echo "set REGISTRY, as registry.example/team"; exit 1; }
	mkdir -p build
	docker buildx build $(IMAGE) --sbom=true --provenance=mode=max --push --metadata-file build/image.json -t $(REGISTRY)/streamd:$(TAG) .

# Signatures of that image, by its digest, and of the files in dist/, without a key: cosign gets a certificate for the identity of the
# one who runs this, or of the CI job (OIDC), and enters it into the public log of sigstore.
DIGEST = $(shell sed -n 's/.*"containerimage.digest": "\(sha256:[0-9a-f]*\)".*/\1/p' build/image.json 2>/dev/null)
sign:
	@test -n "$(REGISTRY)" || { echo "set REGISTRY, as registry.example/team"; exit 1; }
	@test -n "$(DIGEST)" || { echo "build/image.json has no digest; make image-release writes it"; exit 1; }
	cosign sign --yes --recursive $(REGISTRY)/streamd@$(DIGEST)
	set -e; for file in dist/*.whl dist/*.tar.gz dist/*.cdx.json; do cosign sign-blob --yes --bundle $$file.sigstore.json $$file; done

# The base image by its digest, as the registry has it now; commit what it writes.
pin-base:
	$(PYTHON) deploy/pin_base.py

# Whether all that an image has is there as wheels for arm64, for each extra; only descriptions of packages are fetched.
ARM64 ?= arrow azure client gpu gs msk otel registry s3 tfgnn
wheels-arm64: $(VENV)-resolver/.made
	@status=0; for extra in $(ARM64); do \
	  if $(VENV)-resolver/bin/uv pip compile --quiet --no-header --no-annotate --python-version 3.11 --python-platform aarch64-manylinux_2_28 \
	    --only-binary :all: -c constraints.txt --extra $$extra pyproject.toml > /dev/null; \
	  then echo "$$extra: all wheels are there"; else echo "$$extra: not all"; status=1; fi; done; exit $$status
