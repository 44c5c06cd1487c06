/* A machine that runs PTX on the CPU: the part of the emulator that knows the instruction set. runtime.cc gives it
 * what a program asks of the CUDA runtime. */
#ifndef TEGROUP_EMULATOR_MACHINE_H
#define TEGROUP_EMULATOR_MACHINE_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace emulator {

struct module;
struct kernel;

/* A grid to run. Parameters lie one after another as PTX aligns them, `parameters_of` says where. */
struct launch {
    uint32_t grid[3], block[3];
    size_t dynamic_shared; /* bytes a block */
    bool cooperative;      /* all blocks run at a time */
    uint32_t cluster;      /* blocks of a cluster, neighbours along x */
};
struct place {
    size_t offset, bytes;
}; /* of one parameter */
struct facts {
    size_t static_shared, local; /* bytes a block, bytes a thread */
    uint32_t registers, most_threads;
};

/* A module from PTX text. Text that it does not understand ends the program with the line. */
module *load(const char *ptx, size_t bytes);
kernel *find(module *from, const char *name);                  /* NULL: there is none          */
void *variable(module *from, const char *name, size_t *bytes); /* of the module; NULL likewise */
const std::vector<place> &parameters_of(const kernel *entry);
facts facts_of(const kernel *entry);
const char *name_of(const kernel *entry);

/* Runs the grid to its end. What a kernel must not do (an access outside of device memory, a trap, a barrier or a
 * try_wait that never ends) comes back as a text, empty if there is none. */
std::string run(const kernel *entry, const launch &how, const unsigned char *parameters);

/* Device memory, which kernels may touch: global addresses are the CPU's. The runtime says what is allocated. */
void add_memory(void *at, size_t bytes);
void remove_memory(void *at);

/* What a CUtensorMap's 128 bytes hold here; tensormap.replace changes single fields. */
struct tensor_map {
    uint64_t address;
    uint64_t strides[4]; /* bytes, of dimensions 1 to 4 */
    uint32_t sizes[5], box[5];
    uint8_t rank, element_bytes, swizzle, unused[5]; /* swizzle: 0, 32, 64 or 128 bytes */
};
static_assert(sizeof(tensor_map) <= 128, "a tensor map has 128 bytes");

} // namespace emulator
#endif
