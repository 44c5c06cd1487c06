# The emulator, and programs for it: make -f tests/emulator/build.mk OUT=build/emulator build/emulator/test_fp8_gpu. Needs nvcc and g++.
NVCC ?= nvcc
OUT  ?= build/emulator
CUDA := $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC))))

PARTS := parser machine arithmetic memory copies matrices
CXXFLAGS := -O3 -march=native -fPIC -fvisibility=hidden -Wall -Wextra -Itests/emulator
# Programs carry PTX that the emulator can read: of one architecture, not compressed, for a runtime that is a library of its own.
NVCCFLAGS := -std=c++17 -O2 -w -lineinfo -I. -Itests/unit -Itests/gpu -cudart shared -no-compress -gencode arch=compute_90a,code=compute_90a
LIBRARIES := $(OUT)/libcudart.so.13 $(OUT)/libcublasLt.so

$(OUT)/%.o: tests/emulator/%.cc $(wildcard tests/emulator/*.h)
	@mkdir -p $(@D)
	g++ -std=c++20 $(CXXFLAGS) -fno-strict-aliasing -I$(CUDA)/include -c $< -o $@
$(OUT)/libcudart.so.13: $(PARTS:%=$(OUT)/%.o) $(OUT)/runtime.o
	g++ -shared -Wl,-soname,$(@F) -Wl,--default-symver $^ -o $@
$(OUT)/libcublasLt.so: tests/emulator/no_cublaslt.cc
	@mkdir -p $(@D)
	g++ -shared -fPIC -Wl,-soname,$(@F) $< -o $@

$(OUT)/mistakes: tests/emulator/mistakes.cu | $(LIBRARIES)
	$(NVCC) $(NVCCFLAGS) $< -o $@
$(OUT)/%: tests/gpu/%.cu tegroup.h tegroup_cuda.cuh $(wildcard tests/unit/*.h tests/gpu/*.h) | $(LIBRARIES)
	$(NVCC) $(NVCCFLAGS) $< -o $@ -L$(OUT) -lcublasLt
