/* A PTX module as the machine runs it. */
#ifndef TEGROUP_EMULATOR_PROGRAM_H
#define TEGROUP_EMULATOR_PROGRAM_H

#include "machine.h"
#include <memory>
#include <stdexcept>
#include <unordered_map>

namespace emulator {

struct warp;
struct instruction;
typedef uint32_t lanes; /* a bit a lane */

/* What a program must not do. Its text ends the launch. */
struct fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};
std::string format(const char *pattern, ...) __attribute__((format(printf, 1, 2)));

/* Where a value of the 32 lanes lies: `at` bytes into the frame's registers, or for a constant, ~at bytes into the
 * function's constants. 8, 16 and 32 bits take 4 bytes a lane; 64 bits take 8; a predicate takes 4 bytes for all
 * lanes. */
struct slot {
    int32_t at = 0;
    int16_t width = 0;    /* bits: 1, 16, 32, 64; 0 = there is none, as for `_` */
    bool negated = false; /* !p */
};

enum class space { generic, global, shared, local, param, constant };

struct operand {
    enum { is_slot, is_address, is_list } kind = is_slot;
    slot value;                 /* is_address: of the base */
    int64_t offset = 0;         /* is_address */
    std::string name;           /* is_address: of a call's parameter */
    int32_t parameter = -1;     /* is_address: the offset of a call's parameter in the frame's areas */
    bool own = false;           /* is_address: of a parameter of this function */
    std::vector<operand> items; /* is_list; is_address: coordinates */
    slot second;                /* of a|p */
};

/* together: by all lanes of a mask at a time. leave: of a function that is no kernel. wait: for an mbarrier. */
enum class flow { plain, branch, call, leave, exit, block_barrier, warp_barrier, together, wait };

typedef void (*handler)(warp &, const instruction &, lanes);
struct frame;

struct instruction {
    handler run = nullptr;
    flow how = flow::plain;
    slot guard;                   /* width 0: none */
    slot d, a, b, c;              /* of plain arithmetic */
    int64_t number = 0, more = 0; /* whatever the handler needs */
    int32_t target = 0;           /* of a branch */
    slot mask;                    /* together, warp_barrier: whose lanes; width 0 = every living one */
    std::vector<operand> operands;
    struct function *callee = nullptr;
    int32_t line = 0, file = 0, source = 0; /* of the PTX; of the source, 0 where it is not known */
    std::string text;                       /* the opcode */
};

struct function {
    std::string name;
    bool is_entry = false, has_body = false;
    std::vector<instruction> code;
    std::vector<unsigned char> constants;
    size_t register_bytes = 0;
    size_t area_bytes = 0;                  /* local memory, own parameters of a call and parameters of calls, a lane */
    std::vector<place> parameters, results; /* in the entry's buffer, or in the area */
    size_t local_bytes = 0;
    uint32_t most_threads = 1024;
    std::vector<std::string> shared;    /* variables in shared memory that it names */
    mutable std::vector<frame *> spare; /* frames that calls have left behind */
};

struct variable_of_module {
    unsigned char *memory;
    size_t bytes;
};

struct module {
    std::unordered_map<std::string, std::unique_ptr<function>> functions;
    std::unordered_map<std::string, variable_of_module> variables;
    std::unordered_map<std::string, size_t> shared; /* offsets in a block's shared memory */
    std::unordered_map<std::string, size_t> shared_sizes;
    std::unordered_map<int32_t, std::string> files;
    size_t shared_bytes = 0; /* of static variables; those of all kernels lie one after another */
};
struct kernel {
    module *from;
    function *entry;
    std::vector<place> shared; /* its variables in shared memory, in order; offsets are shared addresses */
};

inline bool starts(const std::string &text, const char *with) { return text.rfind(with, 0) == 0; }
inline bool contains(const std::string &text, const char *what) { return text.find(what) != std::string::npos; }
inline void nothing(warp &, const instruction &, lanes) {} /* what has no effect here */

/* Values of codes. */
float from_e4m3(uint32_t code);
float from_e5m2(uint32_t code);
float float_of_f16(uint32_t code);
float float_of_bf16(uint32_t code);

/* Sets the handler of an instruction whose operands are known; false if there is no such opcode. */
bool find_arithmetic(instruction &);
bool find_memory(instruction &);
bool find_copies(instruction &);
bool find_matrices(instruction &);

/* add.rn.f32 -> add, rn, f32 */
std::vector<std::string> parts_of(const std::string &opcode);

/* A constant's slot in a function. */
slot constant(function &, uint64_t value, int width);

/* Where a block's dynamic shared memory begins, behind what is the system's; and its static variables, behind all that
 * matrix descriptors reach. */
constexpr size_t DYNAMIC_BEGIN = 1024, STATIC_BEGIN = 256 << 10;

/* Added to the address in shared memory of block `rank` of the cluster once more than `rank` times, as mapa has it. */
constexpr uint32_t CLUSTER_STEP = 1 << 24;

} // namespace emulator
#endif
