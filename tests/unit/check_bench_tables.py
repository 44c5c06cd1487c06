"""Tests of tests/bench without a GPU: check_bench_tables.py FOLDER, which holds libtegroup.so. Used by test_bench_tables.sh."""
import ctypes
import pathlib
import random
import sys
import traceback
import types

sys.dont_write_bytecode = True
ROOT, WORK = pathlib.Path(__file__).resolve().parents[2], pathlib.Path(sys.argv[1])
sys.path.insert(0, str(ROOT / "tests/bench"))
import bench_gpu  # noqa: E402
import cublaslt  # noqa: E402
import tables  # noqa: E402
import tegroup_ctypes as tg  # noqa: E402

SHAPES = tables.load(ROOT / "tests/bench/shapes.json")["gemm"]
RATES = dict(dense_flops=800e12, copy_bytes=4e12, read_bytes=4.5e12)
RUN = dict(machine="a card", date="2026-01-02", command="bench", rates=RATES, rounds=30)


def made_up(name, op, split, **medians):
    """A measured problem: microseconds by contestant, underscores for blanks."""
    problem = tables.problems(SHAPES, [name], [op], [split])[0]
    us = {n.replace("__", " "): dict(median=m, p10=0.98 * m, p90=1.04 * m) for n, m in medians.items()}
    return dict(problem, run=0, us=us, refused={}, notes={}, clock_mhz=1500, power_w=690, floors_us=tables.floors_us(problem, RATES), rows=problem["sizes"])


def shapes_and_selection():
    for shape in SHAPES:
        for split in tables.SPLITS:
            assert len(tables.sizes(shape, split)) == shape["E"] and sum(tables.sizes(shape, split)) == shape["T"], (shape["name"], split)
    assert len(tables.problems(SHAPES, [], tables.OPS, tables.SPLITS)) == 12 * 4 * 3
    options = bench_gpu.arguments(["--shapes", "mixtral,decode", "--ops", "dgrad,wgrad32", "--splits", "routed", "--rounds", "40"])
    assert [tables.key(p) for p in options.problems][:3] == [("mixtral fc1", "dgrad", "routed"), ("mixtral fc1", "wgrad32", "routed"),
                                                              ("mixtral fc2", "dgrad", "routed")], options.problems
    assert len(options.problems) == 8 and options.rounds == 40 and "--shapes mixtral,decode" in options.command
    assert all(p["split"] == "uniform" for p in bench_gpu.arguments([]).problems[:48])
    try:
        sys.stderr = open(WORK / "said", "w")
        bench_gpu.arguments(["--ops", "backward"])
    except SystemExit:
        pass
    else:
        raise AssertionError("an unknown operation was taken")
    finally:
        sys.stderr = sys.__stderr__


def floors_count_what_must_move():
    p = dict(op="forward", T=6, N=3, K=5, E=4, sizes=[4, 0, 2, 0])
    assert tables.traffic(p) == (2 * 6 * 5 + 2 * 2 * 15, 2 * 6 * 3, 2 * 2 * 15)
    assert tables.traffic(dict(p, op="dgrad")) == (2 * 6 * 3 + 2 * 2 * 15, 2 * 6 * 5, 2 * 2 * 15)
    assert tables.traffic(dict(p, op="wgrad")) == (2 * 6 * 8, 2 * 4 * 15, 0)
    assert tables.traffic(dict(p, op="wgrad32")) == (2 * 6 * 8 + 4 * 2 * 15, 4 * 2 * 15, 0)
    rates = dict(dense_flops=1e6, copy_bytes=1e6, read_bytes=2e6)
    assert tables.floors_us(p, rates) == dict(flops=180, copy=156, read=30)
    assert tables.floors_us(dict(p, op="wgrad"), rates)["read"] == 48


def everyone_has_a_turn_in_every_round():
    log, now = [], [0.0]
    device = types.SimpleNamespace(span=lambda call: call(), sample=lambda: (1500, 600.0), wait=lambda: log.append("wait"), microseconds=lambda span: span)

    def contestant(name, us):
        def call():
            log.append(name)
            now[0] += 1
            return us + now[0] / 1000
        return call
    us, clock, power = bench_gpu.measure(device, {n: contestant(n, t) for n, t in (("a", 10), ("b", 20), ("c", 30))}, 30, random.Random(1))
    assert (clock, power) == (1500, 600) and [round(us[n]["median"]) for n in "abc"] == [10, 20, 30], us
    rounds = [log[i:i + 4] for i in range(0, len(log), 4)]
    assert len(rounds) == 32 and all(sorted(r[:3]) == ["a", "b", "c"] and r[3] == "wait" for r in rounds)
    assert len({tuple(r) for r in rounds}) > 3, "the order does not change"
    assert tables.spread(range(1, 101)) == dict(median=50.5, p10=11, p90=91)


def files_merge():
    one = dict(runs=[RUN], problems=[made_up("mixtral fc1", "dgrad", "uniform", dense=1.0)], host=[dict(contestant="x", E=32)])
    two = dict(runs=[dict(RUN, date="later")], problems=[made_up("mixtral fc1", "dgrad", "uniform", dense=2.0), made_up("mixtral fc2", "dgrad", "uniform", dense=3.0)],
               host=[dict(contestant="x", E=32), dict(contestant="x", E=128)])
    both = tables.merge([one, two])
    assert [(p["us"]["dense"]["median"], p["run"]) for p in both["problems"]] == [(1.0, 0), (3.0, 1)] and len(both["runs"]) == 2 and len(both["host"]) == 2
    assert tables.merge([both]) == both and tables.merge([]) == dict(runs=[], problems=[], host=[])


def tables_and_ratios():
    problems = [made_up("mixtral fc1", "forward", "uniform", dense=4800.0, tegroup__portable=9000.0, cublaslt__best=5000.0, cublaslt__first=5100.0),
                made_up("mixtral fc1", "dgrad", "uniform", dense=4800.0, tegroup__portable=9700.0),
                made_up("mixtral fc1", "dgrad", "zipf16", dense=4800.0, tegroup__portable=19700.0),
                made_up("dsv3 ep8 decode fc1", "forward", "uniform", tegroup__portable=500.0)]
    problems[0]["us"][tables.TUNED] = dict(median=5050.0, p10=5000.0, p90=5100.0)
    problems[0]["refused"]["tegroup cublaslt_loop"] = "not built: here"
    host = [dict(contestant=name, E=32, us=tables.spread([7.0]), minus="1 empty kernel", minus_us=tables.spread([3.0]), net_us=4.0) for name in (tables.PORTABLE, tables.GROUPED)]
    result = dict(runs=[RUN], problems=problems, host=host)
    lines, good = tables.summary(result)
    assert not good and len(lines) == 5, lines
    assert lines[0].startswith("cublaslt_grouped tuned / cuBLASLt by hand, best: 0.99 holds (required 0.97; worst of 1: mixtral fc1 forward uniform)"), lines[0]
    assert ": 0.49 FAILS (required 0.5; worst of 2: mixtral fc1 dgrad uniform; 1 fail)" in lines[1], lines[1]
    floor = 2 * 32 * 4096 * 7168 / 4.5e12 * 1e6
    assert f": {floor / 500:.2f} holds" in lines[2], lines[2]
    assert "tegroup portable: 4.00 holds (required at most 5" in lines[3], lines[3]
    text = tables.table(result)
    assert "| mixtral fc1 | forward | uniform | 802 ±3% | " in text and "| 7.00 |" in text and "tegroup cublaslt_loop: not built: here" in text, text
    assert "Decode, µs" in text and "500.0 ±3%" in text and "dense 8192³ 800 TFLOP/s" in text, text
    for line in text.splitlines():
        assert "None" not in line and "nan" not in line, line
    blocks = [b.splitlines() for b in text.split("\n\n") if b.startswith("|")]
    assert len(blocks) == 3 and all(len({row.count("|") for row in block}) == 1 for block in blocks), "a row lacks a cell"
    lines, good = tables.summary(tables.merge([]))
    assert good and len(lines) == 5 and all("NOT MEASURED" in line for line in lines)
    page = WORK / "page.md"
    page.write_text(f"before\n\n{tables.MARKERS[0]}\nold\n{tables.MARKERS[1]}\n\nafter\n")
    tables.put_between_markers(page, "new\n")
    assert page.read_text() == f"before\n\n{tables.MARKERS[0]}\nnew\n{tables.MARKERS[1]}\n\nafter\n"


class Memory:
    """As much of a torch tensor as the descriptors read."""

    def __init__(self, bytes_, dtype="u8", device="cuda"):
        self.memory, self.dtype, self.device = (ctypes.c_char * bytes_)(), dtype, device

    def data_ptr(self):
        return ctypes.addressof(self.memory)


def descriptors_are_complete():
    torch = types.SimpleNamespace(tensor=lambda values, dtype, device: Memory(8 * len(values), dtype, device), empty=lambda n, dtype, device: Memory(n, dtype, device),
                                  int64="i64", uint8="u8", float32="f32", cuda=types.SimpleNamespace(Stream=lambda: types.SimpleNamespace(cuda_stream=1)))
    device = types.SimpleNamespace(torch=torch, event=lambda: types.SimpleNamespace(cuda_event=2), raw=3)
    tegroup = bench_gpu.Tegroup(WORK / "libtegroup.so", types.SimpleNamespace(lib=None, handle=4), device)
    assert len(tegroup.backends) == 4
    for op in tables.OPS:
        problem = dict(op=op, E=3, T=12, N=8, K=16, sizes=[5, 0, 7])
        wgrad, n, k = op.startswith("wgrad"), 12 * 8 * 2, 12 * 16 * 2
        o = types.SimpleNamespace(p=problem, wgrad=wgrad, a=Memory(k if op == "forward" else n), b=Memory(k if wgrad else 3 * 8 * 16 * 2),
                                  d=Memory(3 * 8 * 16 * 4 if wgrad else max(n, k), "f32" if op == "wgrad32" else "bf16"))
        for backend in tegroup.backends:
            try:
                tegroup.call(o, backend)
            except tg.Refused as refused:  # a complete descriptor meets the backend's own conditions, the first of which is a GPU
                assert refused.status in (tg.TEGROUP_ERROR_UNSUPPORTED, tg.TEGROUP_ERROR_NOT_BUILT) and "target" in str(refused), (op, backend, str(refused))
            else:
                raise AssertionError("a GPU backend without a GPU")


def structures_have_their_sizes():
    assert ctypes.sizeof(cublaslt.Algorithm) == 64 and ctypes.sizeof(cublaslt.Heuristic) == 96
    assert ctypes.sizeof(bench_gpu.KernelNode) == 72 and bench_gpu.KernelNode.parameters.offset == 40


failed = False
for test in (shapes_and_selection, floors_count_what_must_move, everyone_has_a_turn_in_every_round, files_merge, tables_and_ratios,
             descriptors_are_complete, structures_have_their_sizes):
    try:
        test()
    except Exception:
        print(f"not ok bench_{test.__name__}")
        traceback.print_exc(file=sys.stdout)
        failed = True
    else:
        print(f"ok bench_{test.__name__}")
sys.exit(failed)
