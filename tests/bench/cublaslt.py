"""cuBLASLt's grouped matmul called by hand: the numbers are those of cublasLt.h 13.10. cuBLASLt is column-major, so every
product here is the transposed one: D' = B' A'."""
import ctypes
import os
from ctypes import byref, c_float, c_int, c_size_t, c_uint64, c_void_p, Structure

R_32F, R_16BF, COMPUTE_32F = 0, 14, 68
DESC_TRANSA, DESC_TRANSB = 3, 4
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
    """One grouped product, its arrays on the device, with the algorithms that the heuristic offers for it."""

    def __init__(self, lt, torch, problem, a, b, d, workspace, stream):
        if not hasattr(lt.lib, "cublasLtGroupedMatrixLayoutCreate"):
            raise Refused(f"cuBLASLt {lt.version} has no grouped layouts")
        op, groups, n, k, rows = problem["op"], problem["E"], problem["N"], problem["K"], problem["sizes"]
        starts = [sum(rows[:g]) for g in range(groups)]
        self.lt, self.kept = lt, [a, b, d, workspace]
        mean = max(1, round(problem["T"] / groups))
        ragged = lambda tensor, cols: (tensor, [cols] * groups, rows, [s * cols for s in starts])
        weights = lambda tensor: (tensor, [k] * groups, [n] * groups, [g * n * k for g in range(groups)])
        if op == "forward":   # Y' [n, t] = (W' [k, n])^T X' [k, t]
            first, second, result, transposed, means = weights(b), ragged(a, k), ragged(d, n), (1, 0), (n, mean, k)
        elif op == "dgrad":   # dX' [k, t] = W' [k, n] dY' [n, t]
            first, second, result, transposed, means = weights(b), ragged(a, n), ragged(d, k), (0, 0), (k, mean, n)
        else:                 # dW' [k, n] = X' [k, t] (dY' [n, t])^T
            first, second, result, transposed, means = ragged(b, k), ragged(a, n), weights(d), (0, 1), (k, n, mean)

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
        desc, preference, count = c_void_p(), c_void_p(), c_int()
        lt.must("matmul descriptor", lt.lib.cublasLtMatmulDescCreate(byref(desc), COMPUTE_32F, R_32F))
        lt.set("MatmulDesc", desc, DESC_TRANSA, transposed[0])
        lt.set("MatmulDesc", desc, DESC_TRANSB, transposed[1])
        lt.must("preference", lt.lib.cublasLtMatmulPreferenceCreate(byref(preference)))
        bytes_ = workspace.numel() * workspace.element_size()
        lt.set("MatmulPreference", preference, PREF_WORKSPACE, bytes_)
        for attribute, value in zip((PREF_D_ROWS, PREF_D_COLS, PREF_REDUCTION), means):
            lt.set("MatmulPreference", preference, attribute, value)
        offered = (Heuristic * 8)()
        lt.must("heuristic", lt.lib.cublasLtMatmulAlgoGetHeuristic(lt.handle, desc, a_layout, b_layout, d_layout, d_layout, preference, 8,
                                                                  offered, byref(count)))
        self.algorithms = [Algorithm.from_buffer_copy(h.algorithm) for h in offered[:count.value] if h.state == 0]
        if not self.algorithms:
            raise Refused("the heuristic offers no algorithm")
        self.scalars = c_float(1), c_float(1 if op == "wgrad32" else 0)
        self.arguments = [lt.handle, desc, ctypes.addressof(self.scalars[0]), a_list, a_layout, b_list, b_layout,
                          ctypes.addressof(self.scalars[1]), d_list, d_layout, d_list, d_layout]
        self.tail = [workspace.data_ptr(), bytes_, stream]
        self.kept += [offered]

    def arguments_of(self, i):
        """The sixteen arguments of cublasLtMatmul with the i-th algorithm."""
        return [*self.arguments, ctypes.addressof(self.algorithms[i]), *self.tail]

    def call(self, i):
        """A function that enqueues the product with the i-th algorithm."""
        matmul, arguments, must = self.lt.matmul, self.arguments_of(i), self.lt.must

        def run():
            status = matmul(*arguments)
            if status:
                must("cublasLtMatmul", status)
        run.kept = self  # arrays and algorithms that the call points to
        return run
