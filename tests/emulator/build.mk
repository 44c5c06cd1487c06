# The emulator, and programs for it: make -f tests/emulator/build.mk build/emulator/test_fp8_gpu. Needs nvcc and g++, and
# of cuBLAS nothing.
NVCC ?= nvcc
OUT  ?= build/emulator
CUDA := $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC))))

PARTS := parser machine arithmetic memory copies matrices
CXXFLAGS := -O3 -march=native -fPIC -fvisibility=hidden -Wall -Wextra -Itests/emulator
# Programs carry PTX that the emulator can read: of one architecture, not compressed, for a runtime that is a library of its own.
NVCCFLAGS := -std=c++17 -O2 -w -lineinfo -Itests/emulator/without_cublaslt -I. -Itests/unit -Itests/gpu -cudart shared -L$(OUT) -no-compress -gencode arch=compute_90a,code=compute_90a
LIBRARIES := $(OUT)/libcudart.so.13 $(OUT)/libcudart.so

$(OUT)/%.o: tests/emulator/%.cc $(wildcard tests/emulator/*.h)
	@mkdir -p $(@D)
	g++ -std=c++20 $(CXXFLAGS) -fno-strict-aliasing -I$(CUDA)/include -c $< -o $@
$(OUT)/libcudart.so.13: $(PARTS:%=$(OUT)/%.o) $(OUT)/runtime.o
	g++ -shared -Wl,-soname,$(@F) -Wl,--default-symver $^ -o $@
$(OUT)/libcudart.so: $(OUT)/libcudart.so.13
	ln -sf libcudart.so.13 $@

$(OUT)/mistakes: tests/emulator/mistakes.cu | $(LIBRARIES)
	$(NVCC) $(NVCCFLAGS) $< -o $@
# As in tests/gpu/build.mk: tests that do not look into the library are linked with it.
LINKED := $(patsubst tests/gpu/%.cu,$(OUT)/%,$(shell grep -l '^#define TEGROUP_EXTERN' tests/gpu/test_*.cu))
$(OUT)/library.o: tests/gpu/library.cu tests/gpu/inside.h tegroup.h tegroup_cuda.cuh
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) -c $< -o $@
$(LINKED): $(OUT)/library.o
$(OUT)/%: tests/gpu/%.cu tegroup.h tegroup_cuda.cuh $(wildcard tests/unit/*.h tests/gpu/*.h) | $(LIBRARIES)
	$(NVCC) $(NVCCFLAGS) $(filter %.cu %.o,$^) -o $@
