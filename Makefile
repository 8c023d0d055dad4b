# Every target works as the first command on a bare Debian 12, as root or with sudo: tools/setup installs what is
# missing and says so. SETUP=true leaves that out.
SETUP ?= tools/setup

STORM = PYTHONDONTWRITEBYTECODE=1 python3 examples/payments/storm.py --once build/once \
	--service build/release/examples/payments_service

.PHONY: help build run demo test proof bench check docs packages client-packages release lambda clean

help:
	@echo 'make build   the program, at build/once'
	@echo 'make run     a payments service behind once proxy, and a storm of clients and crashes; up until Ctrl-C'
	@echo 'make demo    the same, and ends: nothing may be charged twice'
	@echo 'make test    all tests; SELECTED=true: of the rare ones some, as CI does'
	@echo 'make proof   histories from real stores under faults, judged by checkers of their own; PROOF_TIME=2h, default 20m;'
	@echo '             RIVALS=true: the same faults on other libraries; RESUME=true: goes on where it was interrupted;'
	@echo '             PAGE=true: writes its page, docs/proof.md'
	@echo 'make bench   the benchmarks, as ratios to what the machine can do'
	@echo 'make check   formatting, static analysis, layers, headers, the site, spelling, the installed package'
	@echo 'make docs    these documents as a site with search, at build/site'
	@echo 'make packages  Debian packages of the program and of the library, in build/packages; TRY=true installs them in a bare Debian'
	@echo 'make client-packages  packages for Python, Node and Go with the program, in build/client-packages; ARM64=true: for arm64 too;'
	@echo '             TRY=true installs them in bare Debians and types their start pages'
	@echo 'make release   packages (arm64 too), a static program, those for Python, Node and Go, an image, a chart, their materials and sums,'
	@echo '             the same twice; REHEARSE=true for any commit'
	@echo 'make lambda EXAMPLE=payment  a function for AWS Lambda, at build/lambda/payment.zip, and the program; ARCH=arm64 for Graviton'
	@echo 'make clean   removes build/'

build:
	@$(SETUP) build
	@tools/build release once_cli
	@ln -sfn release/once build/once
	@echo 'build/once is ready'

run: build
	@tools/build release payments_service
	@$(STORM) --stay

demo: build
	@tools/build release payments_service
	@$(STORM)

test:
	@$(SETUP) build test
	@command -v npm >/dev/null || $(SETUP) node
	@tools/python-tools >/dev/null
	@tools/node-tools >/dev/null
	@tools/node-tools tests/console >/dev/null
	@command -v go >/dev/null || $(SETUP) go
	@tools/go-tools >/dev/null
	@command -v mvn >/dev/null || $(SETUP) java
	@tools/lambda-emulator >/dev/null
	@tools/test dev $(if $(SELECTED),--selected)

proof:
	@$(SETUP) build test
	@command -v go >/dev/null || $(SETUP) go
	@command -v npm >/dev/null || $(SETUP) node
	@RIVALS=$(RIVALS) tools/proof dev $(if $(filter true,$(PAGE)),--page) $(if $(filter true,$(RESUME)),--resume)

bench:
	@$(SETUP) build test bench
	@command -v npm >/dev/null || $(SETUP) node
	@tools/build release bench/all
	@bench/run build/release

check:
	@$(SETUP) build test check
	@tools/check

docs:
	@$(SETUP) docs
	@tools/docs
	@echo 'build/site/index.html is ready; for search: python3 -m http.server --directory build/site'

packages: build
	@$(SETUP) package
	@tools/packages $(if $(TRY),--try)

client-packages:
	@$(SETUP) build package
	@tools/static >/dev/null
	@[ "$(ARM64)" != true ] || tools/static arm64 >/dev/null
	@rm -rf build/client-packages
	@tools/client-packages build/client-packages $$(dpkg --print-architecture)=build/static/once $(if $(filter true,$(ARM64)),arm64=build/static-arm64/once)
	@[ "$(TRY)" != true ] || tools/first-minutes --clients

release:
	@$(SETUP) build package release
	@tools/release $(if $(REHEARSE),--rehearse)

lambda: build
	@tools/lambda $(EXAMPLE) $(if $(ARCH),--arch $(ARCH))

clean:
	rm -rf build
