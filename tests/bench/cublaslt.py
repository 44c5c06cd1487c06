"""cuBLASLt's grouped matmul called by hand: the numbers are those of cublasLt.h 13.10. cuBLASLt is column-major, so every
product here is the transposed one: D' = B' A'."""
import ctypes
import os
from ctypes import byref, c_float, c_int, c_size_t, c_uint64, c_void_p, Structure

R_32F, R_16BF, COMPUTE_32F = 0, 14, 68
DESC_POINTER_MODE, DESC_TRANSA, DESC_TRANSB = 2, 3, 4
HOST, DEVICE = 0, 1  # pointer modes: where alpha and beta are
LAYOUT_SIZES_WIDTH, LAYOUT_LD_WIDTH, WIDTH_64 = 12, 13, 1
PREF_WORKSPACE, PREF_REDUCTION, PREF_D_ROWS, PREF_D_COLS = 1, 13, 14, 15
STATUS = {1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 13: "EXECUTION_FAILED",
          14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED"}


class Algorithm(Structure):
    _fields_ = [("data", c_uint64 * 8)]


class Heuristic(Structure):
    _fields_ = [("algorithm", Algorithm), ("workspace_bytes", c_size_t), ("state", c_int), ("waves", c_float), ("reserved", c_int * 4)]


class Refused(Exception):
    """The library cannot do it; the text says why."""


class CublasLt:
    """The library, kept apart from any other copy in the process, and one handle."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_DEEPBIND)
        self.lib.cublasLtGetVersion.restype = c_size_t
        self.version = self.lib.cublasLtGetVersion()
        self.matmul = self.lib.cublasLtMatmul
        self.matmul.argtypes = [c_void_p] * 14 + [c_size_t, c_void_p]
        self.lib.cublasLtMatmulDescCreate.argtypes = [c_void_p, c_int, c_int]
        self.lib.cublasLtMatmulPreferenceCreate.argtypes = [c_void_p]
        self.lib.cublasLtMatmulAlgoGetHeuristic.argtypes = [c_void_p] * 7 + [c_int, c_void_p, c_void_p]
        for what in ("MatrixLayout", "MatmulDesc", "MatmulPreference"):
            getattr(self.lib, f"cublasLt{what}SetAttribute").argtypes = [c_void_p, c_int, c_void_p, c_size_t]
            getattr(self.lib, f"cublasLt{what}GetAttribute").argtypes = [c_void_p, c_int, c_void_p, c_size_t, c_void_p]
        if hasattr(self.lib, "cublasLtGroupedMatrixLayoutCreate"):
            self.lib.cublasLtGroupedMatrixLayoutCreate.argtypes = [c_void_p, c_int, c_int, c_void_p, c_void_p, c_void_p]
        self.handle = c_void_p()
        self.must("cublasLtCreate", self.lib.cublasLtCreate(byref(self.handle)))

    @staticmethod
    def must(what, status):
        if status != 0:
            raise Refused(f"{what} returned {STATUS.get(status, status)}")

    def set(self, what, descriptor, attribute, value):
        """Set an integer attribute in the width that the library says it has: headers and library disagree about some."""
        width = c_size_t()
        get = getattr(self.lib, f"cublasLt{what}GetAttribute")
        self.must(f"width of {what} attribute {attribute}", get(descriptor, attribute, None, 0, byref(width)))
        if width.value not in (4, 8):
            raise Refused(f"{what} attribute {attribute} is {width.value} bytes wide")
        data = value.to_bytes(width.value, "little")
        self.must(f"{what} attribute {attribute}", getattr(self.lib, f"cublasLt{what}SetAttribute")(descriptor, attribute, data, width.value))


class Grouped:
    """One grouped product, its arrays on the device, with every algorithm that the heuristic offers for it: told the mean rows of a
    group, the most or all of them, with alpha and beta on the host and on the device, where cuBLASLt has other kernels that add to FP32.
    The first is the one for the mean and scalars on the host."""

    def __init__(self, lt, torch, problem, a, b, d, workspace, stream):
        if not hasattr(lt.lib, "cublasLtGroupedMatrixLayoutCreate"):
            raise Refused(f"cuBLASLt {lt.version} has no grouped layouts")
        if problem["N"] % 8 or problem["K"] % 8:
            raise Refused("cuBLASLt offers algorithms whose kernels then read misaligned addresses, where rows begin off a multiple of 16 bytes")
        op, groups, n, k, rows = problem["op"], problem["E"], problem["N"], problem["K"], problem["sizes"]
        starts = [sum(rows[:g]) for g in range(groups)]
        self.lt, self.kept = lt, [a, b, d, workspace]
        mean = max(1, round(problem["T"] / groups))
        ragged = lambda tensor, cols: (tensor, [cols] * groups, rows, [s * cols for s in starts])
        weights = lambda tensor: (tensor, [k] * groups, [n] * groups, [g * n * k for g in range(groups)])
        if op == "forward":   # Y' [n, t] = (W' [k, n])^T X' [k, t]
            first, second, result, transposed, means = weights(b), ragged(a, k), ragged(d, n), (1, 0), lambda told: (n, told, k)
        elif op == "dgrad":   # dX' [k, t] = W' [k, n] dY' [n, t]
            first, second, result, transposed, means = weights(b), ragged(a, n), ragged(d, k), (0, 0), lambda told: (k, told, n)
        else:                 # dW' [k, n] = X' [k, t] (dY' [n, t])^T
            first, second, result, transposed, means = ragged(b, k), ragged(a, n), weights(d), (0, 1), lambda told: (k, n, told)

        def array(values):
            tensor = torch.tensor(values, dtype=torch.int64, device="cuda")
            self.kept.append(tensor)
            return tensor.data_ptr()

        def operand(tensor, heights, widths, offsets):
            layout = c_void_p()
            ld = array(heights)
            lt.must("grouped layout", lt.lib.cublasLtGroupedMatrixLayoutCreate(
                byref(layout), R_32F if tensor.dtype == torch.float32 else R_16BF, groups, array(heights), array(widths), ld))
            lt.set("MatrixLayout", layout, LAYOUT_SIZES_WIDTH, WIDTH_64)
            lt.set("MatrixLayout", layout, LAYOUT_LD_WIDTH, WIDTH_64)
            size = tensor.element_size()
            return array([tensor.data_ptr() + size * offset for offset in offsets]), layout

        (a_list, a_layout), (b_list, b_layout), (d_list, d_layout) = operand(*first), operand(*second), operand(*result)
        scalars = torch.tensor([1, 1 if op == "wgrad32" else 0], dtype=torch.float32)
        bytes_ = workspace.numel() * workspace.element_size()
        self.algorithms, self.arguments, self.tail = [], [], [workspace.data_ptr(), bytes_, stream]
        for mode, values in ((HOST, scalars), (DEVICE, scalars.cuda())):
            desc, known = c_void_p(), set()
            lt.must("matmul descriptor", lt.lib.cublasLtMatmulDescCreate(byref(desc), COMPUTE_32F, R_32F))
            lt.set("MatmulDesc", desc, DESC_POINTER_MODE, mode)
            lt.set("MatmulDesc", desc, DESC_TRANSA, transposed[0])
            lt.set("MatmulDesc", desc, DESC_TRANSB, transposed[1])
            self.kept.append(values)
            for rows_told in dict.fromkeys((mean, max(*rows, 1), max(problem["T"], 1))):
                for algorithm in self.offered(desc, (a_layout, b_layout, d_layout), means(rows_told), bytes_):
                    if bytes(algorithm) in known:
                        continue
                    known.add(bytes(algorithm))
                    self.algorithms.append(algorithm)
                    self.arguments.append([lt.handle, desc, values.data_ptr(), a_list, a_layout, b_list, b_layout, values.data_ptr() + 4, d_list,
                                           d_layout, d_list, d_layout])
        if not self.algorithms:
            raise Refused("the heuristic offers no algorithm")

    def offered(self, desc, layouts, means, workspace_bytes):
        """What the heuristic offers where D's rows, its columns and the sum's length are so many in the mean; nothing where it refuses."""
        lt, preference, count, found = self.lt, c_void_p(), c_int(), (Heuristic * 8)()
        a_layout, b_layout, d_layout = layouts
        lt.must("preference", lt.lib.cublasLtMatmulPreferenceCreate(byref(preference)))
        lt.set("MatmulPreference", preference, PREF_WORKSPACE, workspace_bytes)
        for attribute, value in zip((PREF_D_ROWS, PREF_D_COLS, PREF_REDUCTION), means):
            lt.set("MatmulPreference", preference, attribute, value)
        if lt.lib.cublasLtMatmulAlgoGetHeuristic(lt.handle, desc, a_layout, b_layout, d_layout, d_layout, preference, 8, found, byref(count)):
            return []
        return [Algorithm.from_buffer_copy(h.algorithm) for h in found[:count.value] if h.state == 0]

    def arguments_of(self, i):
        """The sixteen arguments of cublasLtMatmul with the i-th algorithm."""
        return [*self.arguments[i], ctypes.addressof(self.algorithms[i]), *self.tail]

    def call(self, i):
        """A function that enqueues the product with the i-th algorithm."""
        matmul, arguments, must = self.lt.matmul, self.arguments_of(i), self.lt.must

        def run():
            status = matmul(*arguments)
            if status:
                must("cublasLtMatmul", status)
        run.kept = self  # arrays and algorithms that the call points to
        return run
