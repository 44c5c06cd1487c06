# The GPU test programs, as many at a time as make -j says: make -f tests/gpu/build.mk OUT=build/gpu ARCHS=90a. Called by
# tests/gpu/run.sh; needs nvcc, but no GPU.
NVCC  ?= nvcc
ARCHS ?= 90a
OUT   ?= build/gpu
CUBLAS_HOME ?=
comma := ,

GENCODE := $(foreach a,$(ARCHS),-gencode arch=compute_$(a)$(comma)code=sm_$(a))
SPLIT := $(shell $(NVCC) --help 2>/dev/null | grep -q -e --split-compile && echo -split-compile=0)# one unit's kernels on all cores
NVCCFLAGS := -std=c++17 -O2 -w -lineinfo -I. -Itests/unit -Itests/gpu $(SPLIT)
LIBS := $(if $(CUBLAS_HOME),-L$(CUBLAS_HOME)/lib) -lcublasLt
WRAPPED := __cudaRegisterFunction __cudaGetKernel __cudaLaunchKernel cudaLaunchKernel cudaLaunchKernelExC cudaLaunchCooperativeKernel
HEADERS := tegroup.h tegroup_cuda.cuh examples/check.h $(wildcard tests/unit/*.h tests/gpu/*.h tests/gpu/works/*.h)

TESTS := $(patsubst tests/gpu/%.cu,%,$(wildcard tests/gpu/test_*.cu))
VARIANTS := plain debug fast_math per_thread switches sm_90 ptx_80 sm_80
EXAMPLES := quickstart compare grouped_mlp own_kernel own_epilogue
PROGRAMS := $(TESTS) works pair pair_rdc $(VARIANTS:%=variant_%) $(EXAMPLES)

all: $(PROGRAMS:%=$(OUT)/%)

list:
	@echo $(PROGRAMS)

$(OUT)/count_kernels.o: tests/gpu/count_kernels.cc
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -O1 -c $< -o $@

# Tests that do not look into the library are linked with it; so its kernels are compiled once.
LINKED := $(patsubst tests/gpu/%.cu,$(OUT)/%,$(shell grep -l '^#define TEGROUP_EXTERN' tests/gpu/test_*.cu))
$(OUT)/library.o: tests/gpu/library.cu tests/gpu/inside.h tegroup.h tegroup_cuda.cuh
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) $(GENCODE) -c $< -o $@
$(LINKED): $(OUT)/library.o

# Programs that make sanitize-gpu runs know which kernels they launched.
$(TESTS:%=$(OUT)/%): $(OUT)/%: tests/gpu/%.cu $(OUT)/count_kernels.o $(HEADERS)
	$(NVCC) $(NVCCFLAGS) $(GENCODE) $(filter %.cu %.o,$^) $(WRAPPED:%=-Xlinker --wrap=%) -o $@ $(LIBS)

$(OUT)/works: tests/gpu/works/works.cu $(HEADERS)
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) $(GENCODE) -Xcompiler -pthread $< -o $@ $(LIBS)

PAIR := $(foreach p,pair pair_rdc,$(OUT)/$(p).o $(OUT)/$(p)_other.o)
$(OUT)/pair.o $(OUT)/pair_rdc.o: tests/gpu/works/pair.cu
$(OUT)/pair_other.o $(OUT)/pair_rdc_other.o: tests/gpu/works/pair_other.cu
$(PAIR): $(HEADERS)
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) $(GENCODE) $(if $(findstring rdc,$@),-rdc=true) -c $(firstword $(filter %.cu,$^)) -o $@
$(OUT)/pair $(OUT)/pair_rdc: $(OUT)/%: $(OUT)/%.o $(OUT)/%_other.o
	$(NVCC) $(GENCODE) $(if $(findstring rdc,$@),-rdc=true) $^ -o $@ $(LIBS)

# One source in every kind of build. A cap of 99 KB of shared memory stands for GPUs that have no more. With -G what the
# source does not call is left out: all of it took more than twelve minutes on 16 cores.
variant_debug      := $(GENCODE) -G -DTEGROUP_NO_FP8 -DTEGROUP_NO_MOE -DTEGROUP_NO_F16
variant_fast_math  := $(GENCODE) --use_fast_math
variant_per_thread := $(GENCODE) --default-stream per-thread
variant_plain      := $(GENCODE)
variant_switches   := $(GENCODE) -DTEGROUP_NO_F16 -DTEGROUP_NO_BACKWARD -DTEGROUP_NO_ACTIVATION -DTEGROUP_NO_MOE -DTEGROUP_NO_FP8
variant_sm_90      := -gencode arch=compute_90,code=sm_90
variant_ptx_80     := -gencode arch=compute_80,code=compute_80 -DTEGROUP_IMPL_SHARED_LIMIT=101376
variant_sm_80      := -gencode arch=compute_80,code=sm_80 -DEXPECT_NOT_BUILT
$(VARIANTS:%=$(OUT)/variant_%): $(OUT)/variant_%: tests/gpu/works/variant.cu $(HEADERS)
	@mkdir -p $(@D)
	$(NVCC) $(filter-out $(if $(findstring -G,$(variant_$*)),-lineinfo),$(NVCCFLAGS)) $(variant_$*) -DEXPECT_SM90=$(if $(filter code=sm_90a,$(subst $(comma), ,$(variant_$*))),1,0) -Xcompiler -pthread $< -o $@

$(EXAMPLES:%=$(OUT)/%): $(OUT)/%: examples/%.cu $(HEADERS)
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) $(GENCODE) $< -o $@ $(LIBS)

.PHONY: all list
