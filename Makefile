# tegroup: `make demo` shows it at work, `make test` proves it. `make help` lists the rest.

CC        ?= cc
PYTHON    ?= python3
PREFIX    ?= /usr/local
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(shell command -v nvcc 2>/dev/null || echo /usr/local/cuda/bin/nvcc))
NVCC      ?= $(wildcard $(CUDA_HOME)/bin/nvcc)
# This machine's GPU, such as 90; nothing without one.
GPU       := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
# Architectures for nvcc, such as 80 or 90a; CUBLAS_HOME: a cuBLAS other than the toolkit's (its lib/ is put first).
ARCHS       ?= $(or $(GPU:90=90a),90a)
CUBLAS_HOME ?=
# BENCH: options of tests/bench/bench_gpu.py. RESULT: what bench-hopper measured, and plots draws.
# SANITIZE=address,undefined builds every test with those sanitizers.
SANITIZE    ?=
RESULT      ?= build/hopper.json

OPENMP   := $(shell echo 'int main(void){return 0;}' | $(CC) -fopenmp -x c - -o /dev/null 2>/dev/null && echo -fopenmp)
WARNINGS := -Wall -Wextra -Wno-array-bounds # gcc 12 takes a store by its type at run time for one past a buffer of 16 bits
CFLAGS   ?= -O2 -g
TESTFLAGS = -std=gnu11 $(CFLAGS) $(WARNINGS) $(OPENMP) $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all) -I. -Itests/unit
comma    := ,
GENCODE   = $(foreach a,$(ARCHS),-gencode arch=compute_$(a)$(comma)code=sm_$(a))
export CC NVCC ARCHS CUDA_HOME CUBLAS_HOME OPENMP PYTHON

HEADERS := tegroup.h tegroup_cuda.cuh
UNIT    := $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/test_*.c))

.PHONY: help demo test test-more test-gpu test-more-gpu test-emulated test-layers check-fresh build-gpu sanitize-gpu test-teeth fuzz bench bench-errors bench-cpu bench-gpu bench-hopper bench-compile bench-ggml bench-moe bench-mlp bench-step bench-fp8 bench-gather bench-quantize bench-decoded tiles fit plots docs examples headers lib install compile-matrix lint format clean

help: ## this list
	@echo "Variables: CC NVCC ARCHS CUDA_HOME CUBLAS_HOME BENCH SANITIZE PYTHON PREFIX DESTDIR RANKS"
	@awk -f tools/help.awk Makefile

# FORMAT=mxfp8 and the like: experts in FP8 or narrower, whose kernels nvcc compiles for them alone.
DEMO := build/train_moe$(if $(NVCC),$(if $(GPU),$(if $(FORMAT),$(if $(filter-out f32,$(FORMAT)),_gpu_formats),_gpu)))
# RANKS=2 and the like: one whose experts are shared out over so many processes, by MPI.
demo: $(if $(RANKS),build/ep_mpi,$(DEMO)) ## train a mixture-of-experts language model on real text in about a minute: a small one, or with a GPU a larger one
ifneq ($(RANKS),)
	OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_WAIT_POLICY=passive mpirun --oversubscribe -n $(RANKS) build/ep_mpi --train examples/data/persuasion.txt
else
	OMP_WAIT_POLICY=passive $(DEMO) $(if $(FORMAT),--format $(FORMAT)) --out build/train_moe.safetensors # spinning threads starve each other on shared cores
endif

# What each suite runs, what takes long first. Scripts that are in both do in each a part of their work (SUITE).
BOTH  := tests/compile/run.sh tests/unit/test_examples.sh tests/unit/test_side_effects.sh tests/unit/test_ep_mpi.sh
QUICK := $(BOTH) $(UNIT:%=build/sanitized/%) tests/unit/test_faults.sh tests/unit/test_header.sh
# What the CPU backend does with this machine's vectors, which a build for any machine has not.
NATIVE := build/native/test_gemm build/native/test_contract build/native/test_linear build/native/test_quantised_gemm
# A processor with AVX-512 has the code for those without, too.
ifneq ($(shell grep -sw avx512f /proc/cpuinfo),)
NATIVE += build/no_avx512/test_gemm build/no_avx512/test_contract build/no_avx512/test_quantised_gemm
endif
MORE  := $(BOTH) tests/emulator/run.sh tests/fuzz/run.sh $(UNIT:%=build/%) $(NATIVE) $(filter-out $(BOTH) $(QUICK),$(wildcard tests/unit/test_*.sh))
GPU_TESTS := tests/gpu/run.sh tests/gpu/train_moe.sh

# As many programs at a time as there are cores, unless make was told how many.
SIDE_BY_SIDE = $(MAKE) --silent --keep-going --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc 2>/dev/null || echo 2))

test: ## the quick suite, within five minutes on two cores; needs gcc and make alone, and runs on a GPU too where there is one
	@tests/run.sh begin quick $(QUICK) $(GPU_TESTS)
	@+-$(SIDE_BY_SIDE) $(QUICK:%=quick/%)
	@for program in $(GPU_TESTS); do tests/run.sh one quick $$program; done
	@tests/run.sh sum quick

test-more: ## the long rest: full problem sizes, every compiler and standard, documentation, examples, a short fuzz
	@tests/run.sh begin more $(MORE)
	@+-$(SIDE_BY_SIDE) $(MORE:%=more/%)
	@tests/run.sh sum more

test-gpu: ## tests on this machine's GPU, and with NCCL on two of them
	@tests/run.sh begin gpu $(GPU_TESTS) tests/gpu/ep.sh tests/teeth/gpu.sh
	@for program in $(GPU_TESTS) tests/gpu/ep.sh tests/teeth/gpu.sh; do tests/run.sh one gpu $$program; done
	@tests/run.sh sum gpu

test-more-gpu: ## the long rest on this machine's GPU: 2,000 problems of each pair of formats and what else is long
	@tests/run.sh begin more-gpu tests/gpu/run.sh
	@tests/run.sh one more-gpu tests/gpu/run.sh
	@tests/run.sh sum more-gpu

# Not test_gpu, which has too many problems for it, nor test_cublaslt.
EMULATED := transposed_gpu quantize_gpu formats_gpu decoded_gpu fp8_gpu fp8_contract_gpu moe_layer_gpu moe_gpu mlp_gpu linear_gpu quantised_layers_gpu quantize_registers_gpu scales_gpu own_gpu ep_gpu
test-emulated: ## GPU tests without a GPU: PTX, run by an emulator on the CPU
	tests/emulator/run.sh $(EMULATED:%=test_%)

test-layers: build/test_linear build/test_mlp ## the layers, every combination on each backend, those of a GPU where there is one
	tests/layers.sh

sanitize-gpu: ## every kernel under memcheck, racecheck, initcheck and synccheck
	tests/gpu/run.sh sanitize

build-gpu: ## compile the GPU tests for ARCHS without running them; TEGROUP_GPU_BUILD=FOLDER says where to, and test-gpu where from
	tests/gpu/run.sh build

docs: build/backends_doc ## write docs/backends.md from the dispatch and quirk tables
	build/backends_doc > docs/backends.md

build/backends_doc: tools/backends_doc.c tegroup.h
	@mkdir -p build
	$(CC) -std=gnu11 -O1 -I. $< -o $@ -lm

test-teeth: ## plant faults in the library one by one; the unit tests must catch each
	tests/teeth/run.sh

fuzz: build/fuzz ## fuzz checks, layouts, prepare and explain for longer: FUZZ_RUNS=100000000
	FUZZ_RUNS=$${FUZZ_RUNS:-20000000} tests/fuzz/run.sh

bench: ## on a machine with a GPU the GPU backends beside torch and cuBLAS, elsewhere the CPU backend beside OpenBLAS
	@if [ -n "$(NVCC)" ] && nvidia-smi -L >/dev/null 2>&1; then $(MAKE) bench-gpu; else $(MAKE) bench-cpu; fi

bench-cpu: build/bench_cpu ## CPU backend against OpenBLAS sgemm in a loop (needs libopenblas-dev)
	OMP_WAIT_POLICY=passive build/bench_cpu # spinning threads would slow the other contestant down

BENCH_GPU = $(PYTHON) tests/bench/bench_gpu.py $(if $(CUBLAS_HOME),--cublaslt $(CUBLAS_HOME)/lib/libcublasLt.so.13)
bench-gpu: build/libtegroup.so build/libhost_calls.so ## GPU backends, torch grouped_mm, cuBLASLt by hand, dense; BENCH="--help" for options
	$(BENCH_GPU) $(BENCH)

bench-hopper: build/libtegroup.so build/libhost_calls.so build/compile.json ## the Hopper backend beside torch, cuBLASLt 13.10 (CUBLAS_HOME) and dense; fails where a required figure is missed
	$(BENCH_GPU) --backends sm90 --sweep --seconds 3600 --out $(RESULT) $(BENCH)
	$(PYTHON) tests/bench/hopper.py $(RESULT) build/compile.json

COMPILE_TIMES = $(PYTHON) tests/bench/compile_times.py --out build/compile.json
bench-compile: ## seconds and bytes of the quickstart and of everything, for one architecture; BENCH=--kernels lists every kernel
	$(COMPILE_TIMES) $(BENCH)

build/compile.json: tests/bench/compile_times.py examples/quickstart.cu $(HEADERS)
	$(COMPILE_TIMES)

tiles: build/libtegroup.so ## time SM90's kernels on a Hopper GPU for the table of their costs: tests/bench/tiles.csv
	$(PYTHON) tests/bench/tiles.py measure $(BENCH)

fit: ## fit the costs of SM90's kernels to tests/bench/tiles.csv; BENCH=--write puts them into src/cuda/sm90_kernels.h
	$(PYTHON) tests/bench/tiles.py fit $(BENCH)

plots: ## draw docs/hopper-*.svg from RESULT (needs matplotlib)
	$(PYTHON) tests/bench/plots.py $(RESULT)

bench-ggml: ## an MoE block on the CPU beside ggml's, of which GGML is a built checkout: tests/bench/bench_ggml.cpp says how
	@mkdir -p build
	$(CXX) -std=c++17 -O3 -march=native $(OPENMP) -I. -I$(GGML)/include tests/bench/bench_ggml.cpp -Wl,--start-group $(wildcard $(GGML)/build/src/libggml*.a) -Wl,--end-group -o build/bench_ggml -lpthread -ldl
	OMP_WAIT_POLICY=passive build/bench_ggml $(or $(BENCH),2048 768 128 8 1 1 8 64 512)

bench-moe: ## the operations around the GEMM on a GPU, beside a copy of as many bytes
	@mkdir -p build
	$(NVCC) -std=c++17 -O3 -DTEGROUP_NO_SM90 -DTEGROUP_NO_PORTABLE $(GENCODE) -I. tests/bench/bench_moe.cu -o build/bench_moe
	build/bench_moe

bench-decoded: ## products of MXFP8, MXFP4 and NVFP4 on a Hopper GPU, and by PORTABLE, beside those of BF16
	@mkdir -p build
	$(NVCC) -std=c++17 -O3 -DTEGROUP_NO_CUBLASLT -DTEGROUP_NO_ACTIVATION -DTEGROUP_NO_MOE -DTEGROUP_NO_F16 $(GENCODE) -I. tests/bench/bench_decoded.cu -o build/bench_decoded
	build/bench_decoded
	build/bench_decoded portable

bench-mlp: ## the grouped MLP on a GPU, activations and their gradients in epilogues and by themselves
	@mkdir -p build
	$(NVCC) -std=c++17 -O3 -DTEGROUP_NO_CUBLASLT $(GENCODE) -I. tests/bench/bench_mlp.cu -o build/bench_mlp -lcublas
	build/bench_mlp && build/bench_mlp interleaved && build/bench_mlp portable

bench-step: ## a training step of the grouped MLP in block FP8 on a Hopper GPU, beside BF16; BENCH=nodes times each launch
	@mkdir -p build
	$(NVCC) -std=c++17 -O3 -DTEGROUP_NO_CUBLASLT -DTEGROUP_NO_MOE -DTEGROUP_NO_F16 $(GENCODE) -I. tests/bench/bench_step.cu -o build/bench_step
	build/bench_step $(BENCH)

bench-fp8: build/libtegroup.so ## products of FP8 on a Hopper GPU, beside torch._scaled_grouped_mm (needs torch)
	$(PYTHON) tests/bench/bench_fp8.py $(BENCH)

bench-gather: build/libtegroup.so ## products of rows picked by an index on a Hopper GPU, beside permuting first (needs torch)
	$(PYTHON) tests/bench/bench_gather.py $(BENCH)

bench-quantize: build/libtegroup.so ## quantise and dequantise on a GPU, beside a copy of as many bytes (needs torch)
	$(PYTHON) tests/bench/bench_quantize.py $(BENCH)

bench-errors: build/format_errors ## what formats are wrong by, on three kinds of data
	build/format_errors

check-fresh: ## the README's commands in a bare Debian made by debootstrap: what they print and how long they take; needs root
	tests/fresh.sh

examples: ## build and run every example by the command in its first line
	tests/unit/test_examples.sh

headers: ## stitch src/ into tegroup.h and tegroup_cuda.cuh
	tools/stitch.sh src/tegroup.parts > build.tegroup.h && mv build.tegroup.h tegroup.h
	tools/stitch.sh src/tegroup_cuda.parts > build.tegroup_cuda.cuh && mv build.tegroup_cuda.cuh tegroup_cuda.cuh

lib: build/libtegroup.so ## libtegroup.so for C, Python, Rust ...: the C half, and the CUDA half where nvcc is found

install: ## copy the two headers to $(DESTDIR)$(PREFIX)/include
	mkdir -p $(DESTDIR)$(PREFIX)/include
	cp $(HEADERS) $(DESTDIR)$(PREFIX)/include/

compile-matrix: ## compile the headers under every standard, compiler, switch, two nvcc and six architectures, with sizes and times
	@tests/compile/matrix.sh

# A matrix without elements has no rows to point at; the analyser cannot see that no loop gets to one.
lint: build/libtegroup.c ## cppcheck and the compiler's analyser over the whole implementation
	cppcheck --quiet --error-exitcode=1 --std=c99 --enable=warning,performance,portability --suppress=missingIncludeSystem --suppress=toomanyconfigs -U__CUDACC__ -U__cplusplus -I. build/libtegroup.c
	$(CC) -std=c99 -fanalyzer -Wno-analyzer-null-dereference -Wno-analyzer-null-argument -O1 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I. -c build/libtegroup.c -o /dev/null

format: ## lay out the implementation parts of src/ with clang-format 14
	clang-format -i --style=file $(filter-out %types.h src/api/%,$(wildcard src/*/*.h))

clean: ## remove build/
	rm -rf build

build/train_moe: examples/train_moe.c $(wildcard examples/train_moe_*.h) tegroup.h
	@mkdir -p build
	$(CC) -std=gnu11 -O3 -march=native $(OPENMP) -I. $< -o $@ -lm

build/ep_mpi: examples/ep/ep_mpi.c $(wildcard examples/ep/*.h) examples/train_moe_text.h tegroup.h
	@mkdir -p build
	@command -v mpicc > /dev/null || { echo "this needs MPI: apt-get install libopenmpi-dev openmpi-bin"; exit 1; }
	mpicc -std=gnu11 -O3 -march=native $(OPENMP) -I. $< -o $@ -lm

# The GEMM kernels that run on ARCHS, and no others; on all cores: of architectures by -t, of one's kernels where nvcc can.
DEMO_KERNELS = $(if $(filter 90a,$(ARCHS)),$(if $(filter-out 90a,$(ARCHS)),,-DTEGROUP_NO_PORTABLE),-DTEGROUP_NO_SM90)
SPLIT        = $(shell $(NVCC) --help | grep -q -e --split-compile && echo -split-compile=0)
build/train_moe_gpu_formats: FORMATS := -DTRAIN_MOE_FORMATS
build/train_moe_gpu build/train_moe_gpu_formats: examples/train_moe.c examples/train_moe.cu $(wildcard examples/train_moe_*.h) $(HEADERS)
	@mkdir -p build
	@echo "nvcc compiles the kernels for $(ARCHS:%=sm_%): about 25 s on 16 cores, a minute on two$(if $(FORMATS),; twice that with formats)"
	@$(NVCC) -O1 -t 0 $(SPLIT) $(GENCODE) $(DEMO_KERNELS) -Xcompiler -march=native$(if $(OPENMP),$(comma)$(OPENMP)) -DTRAIN_MOE_GPU $(FORMATS) -I. $(filter %.c %.cu,$^) -o $@ -lm

build/format_errors: tests/bench/format_errors.c tests/unit/format_errors.h tests/unit/support.h tegroup.h
	@mkdir -p build
	$(CC) $(TESTFLAGS) $< -o $@ -lm

build/bench_cpu: tests/bench/bench_cpu.c tegroup.h
	@mkdir -p build
	$(CC) -std=gnu11 -O3 -march=native $(OPENMP) -I. $< -o $@ -lopenblas -lm

build/libtegroup.c:
	@mkdir -p build
	printf '#define TEGROUP_IMPLEMENTATION\n#define TEGROUP_EXTERN\n#include "tegroup.h"\n' > $@

build/libtegroup.so: build/libtegroup.c $(HEADERS)
ifneq ($(NVCC),)
	$(NVCC) -x cu -O3 -shared -Xcompiler -fPIC$(if $(OPENMP),$(comma)$(OPENMP)) $(GENCODE) -I. $< -o $@
else
	$(CC) -std=gnu11 -O3 $(OPENMP) -shared -fPIC -I. $< -o $@ -lm
endif

build/libhost_calls.so: tests/bench/host_calls.cu
	@mkdir -p build
	$(NVCC) -std=c++17 -O2 -shared -Xcompiler -fPIC $(GENCODE) $< -o $@

.PHONY: $(QUICK:%=quick/%) $(MORE:%=more/%)
$(QUICK:%=quick/%): quick/%: %
	@tests/run.sh one quick $<
$(MORE:%=more/%): more/%: %
	@tests/run.sh one more $<
more/tests/fuzz/run.sh: build/fuzz
more/tests/unit/test_order.sh: $(UNIT:%=build/%)

# Unit tests. Those that do not look into the library are linked with it, which each kind of build compiles once.
OPTIONS_native    := -march=native
OPTIONS_no_avx512 := -march=native -mno-avx512f
OPTIONS_sanitized := -Og -g1 -fsanitize=address,undefined -fno-sanitize-recover=all # -O1 takes twice as long to compile
define UNIT_TESTS # of a folder
$(1)/library.o: build/libtegroup.c tegroup.h
	@mkdir -p $$(@D)
	$$(CC) $$(TESTFLAGS) $$(OPTIONS_$(notdir $(1))) -c $$< -o $$@
$(1)/test_%: tests/unit/test_%.c $(1)/library.o $$(wildcard tests/unit/*.h) examples/check.h
	$$(CC) $$(TESTFLAGS) $$(OPTIONS_$(notdir $(1))) $$(filter %.c %.o,$$^) -o $$@ -lm
endef
$(foreach folder,build build/native build/no_avx512 build/sanitized,$(eval $(call UNIT_TESTS,$(folder))))

# libFuzzer comes with clang; where it is missing tests/fuzz/run.sh says so and skips.
build/fuzz: tests/fuzz/fuzz.c tegroup.h
	@mkdir -p build
	@rm -f $@
	-if command -v clang > /dev/null; then clang -std=gnu11 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I. $< -o $@ -lm; fi
