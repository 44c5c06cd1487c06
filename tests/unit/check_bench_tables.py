"""Tests of tests/bench without a GPU: check_bench_tables.py FOLDER, which holds libtegroup.so. Used by test_bench_tables.sh."""
import contextlib
import copy
import ctypes
import io
import json
import pathlib
import random
import sys
import traceback
import types
import xml.etree.ElementTree

sys.dont_write_bytecode = True
ROOT, WORK = pathlib.Path(__file__).resolve().parents[2], pathlib.Path(sys.argv[1])
sys.path.insert(0, str(ROOT / "tests/bench"))
import bench_gpu  # noqa: E402
import compile_times  # noqa: E402
import cublaslt  # noqa: E402
import hopper  # noqa: E402
import plots  # noqa: E402
import tables  # noqa: E402
import tegroup_ctypes as tg  # noqa: E402

PEERS = tables.load(ROOT / "tests/bench/peers.json")
SHAPES = tables.load(ROOT / "tests/bench/shapes.json")["gemm"]
RATES = dict(dense_flops=800e12, copy_bytes=4e12, read_bytes=4.5e12)
RUN = dict(machine="a card, cuBLASLt 131000, more", date="2026-01-02", command="bench", rates=RATES, rounds=30)


def made_up(name, op, split, **medians):
    """A measured problem: microseconds by contestant, underscores for blanks."""
    return made_up_of(tables.problems(SHAPES, [name], [op], [split])[0], **medians)


def made_up_of(problem, **medians):
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
    assert all(p["split"] == "uniform" for p in bench_gpu.arguments([]).problems[:48]) and len(bench_gpu.arguments([]).problems) == 144
    swept = bench_gpu.arguments(["--sweep", "--ops", "wgrad", "--shapes", "rows a group", "--backends", "sm90,portable"])
    assert [max(p["sizes"]) for p in swept.problems] == [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192] and swept.backends == ["sm90", "portable"]
    assert all(p["kind"] == "sweep" and p["op"] == "forward" and sum(p["sizes"]) == p["T"] for p in swept.problems)
    assert len({tables.key(p) for p in bench_gpu.arguments(["--sweep"]).problems}) == 154
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
    assert tables.reads_alone(p) and not tables.reads_alone(dict(p, T=1 << 20, N=8))


def everyone_has_a_turn_in_every_round():
    log, now = [], [0.0]
    device = types.SimpleNamespace(span=lambda call, reads: call(), sample=lambda: (1500, 600.0), wait=lambda: log.append("wait"), microseconds=lambda span: span)

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
    both = tables.merge([both, dict(compile=[dict(what="quickstart", seconds=1)]), dict(compile=[dict(what="quickstart", seconds=2)])])
    assert both["compile"] == [dict(what="quickstart", seconds=1)]
    assert tables.merge([both]) == both and tables.merge([]) == dict(runs=[], problems=[], host=[], compile=[])


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
    problems[0]["us"][tables.FIRST]["median"] = 4800.0  # which may be faster than the one chosen before the turns
    assert "by hand, best: 0.95 FAILS" in tables.summary(result)[0][0], tables.summary(result)[0][0]
    problems[0]["us"][tables.FIRST]["median"] = 5100.0
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
    assert tables.other_builds(result) == []
    problems[0]["us"]["tegroup portable of old"], problems[1]["us"]["tegroup portable of old"] = tables.spread([9900.0]), tables.spread([8730.0])
    problems[1]["us"]["tegroup sm90 of old"] = tables.spread([7.0])  # nothing to compare it with
    assert tables.other_builds(result) == ["tegroup portable of old / this one, time: mean 0.995 of 2, from 0.900 (mixtral fc1 dgrad uniform) to 1.100 "
                                           "(mixtral fc1 forward uniform)"], tables.other_builds(result)
    assert bench_gpu.arguments(["--beside", "old=a/b.so", "--beside", "new=c=d"]).beside == [("old", "a/b.so"), ("new", "c=d")]
    lines, good = tables.summary(tables.merge([]))
    assert good and len(lines) == 5 and all("NOT MEASURED" in line for line in lines)
    page = WORK / "page.md"
    page.write_text("before\n\n<!-- bench_gpu: begin -->\nold\n<!-- bench_gpu: end -->\n\nafter\n<!-- hopper: begin --><!-- hopper: end -->")
    tables.put_between_markers(page, "new\n")
    tables.put_between_markers(page, "more\n", "hopper")
    assert page.read_text() == "before\n\n<!-- bench_gpu: begin -->\nnew\n<!-- bench_gpu: end -->\n\nafter\n<!-- hopper: begin -->\nmore\n<!-- hopper: end -->"
    long = "\n".join(["- " + "word --option " * 20, "| " + "cell " * 40 + "|", "", "short"])
    wrapped = tables.wrapped(long).split("\n")
    assert max(map(len, wrapped[:3])) <= 120 and wrapped[1].startswith("  ") and wrapped[3:] == long.split("\n")[1:], wrapped
    assert tables.wrapped(long).split() == long.split()


def hopper_result():
    """A whole run in which every figure reaches its goal."""
    problems = []
    for p in tables.problems(SHAPES, [], tables.OPS, tables.SPLITS):
        floors = tables.floors_us(p, RATES)
        filled = p["T"] / sum(-(-rows // 64) * 64 for rows in p["sizes"])
        own = floors["read"] * 1.03 if p["kind"] == "decode" and not p["op"].startswith("wgrad") else max(1.1 * floors["flops"] / filled, 1.02 * floors["copy"])
        times = dict(cublaslt__first=1.18 * own, cublaslt__best=1.16 * own, tegroup__sm90=own)
        if p["op"] != "wgrad32":
            times["torch"] = 1.6 * own
        if p["op"] in ("forward", "dgrad"):
            times["dense"] = 1.01 * own
        if p["kind"] == "prefill" and p["split"] == "zipf16" and not p["op"].startswith("wgrad"):
            times[tables.EVEN] = own * filled
        if p["kind"] == "prefill" and p["op"] == "wgrad32":
            times[tables.OVERWRITES] = own
        problems.append(made_up_of(p, **times))
    problems += [made_up_of(p, dense=90.0 + p["T"], torch=100.0 + p["T"], tegroup__sm90=95.0 + p["T"]) for p in tables.sweep([])]
    host = [dict(contestant=tables.HOPPER, E=groups, us=tables.spread([5.0]), minus="1 empty kernel", minus_us=tables.spread([2.5]), net_us=2.5) for groups in (32, 128)]
    times = [dict(what=what, seconds=seconds, bytes=1000, machine="a machine") for what, seconds in (("quickstart", 14.0), ("everything", 89.0))]
    return dict(runs=[RUN], problems=problems, host=host, compile=times)


def judged(result):
    text, good = hopper.report(result, hopper.figures(result, SHAPES, PEERS))
    summary = next(block for block in text.split("\n\n") if block.lstrip().startswith("| figure"))
    return text, good, [line for line in summary.splitlines() if line.count("|") == 6 and line.startswith("| ") and not line.startswith("| figure") and not line.endswith("| pass, goal |")]


def of(result, name, op, split):
    return next(p for p in result["problems"] if tables.key(p) == (name, op, split))


def hopper_passes_and_prints_every_cell():
    text, good, short = judged(hopper_result())
    assert good and not short, text
    blocks = {b[0].rstrip(":"): t.splitlines()[2:] for b, t in ((h.splitlines(), t) for h, t in zip(text.split("\n\n"), text.split("\n\n")[1:]) if t.startswith("|"))}
    counts = {what: len(rows) for what, rows in blocks.items()}
    assert counts["each cell / best peer"] == 90 and counts["wgrad32, geometric mean / best peer"] == 30, counts
    assert sorted(counts.values()) == sorted([14, 1, 90, 8, 20, 30, 36, 24, 12, counts["zipf16, ratio to torch / that of the best library of peers.json"], 2, 1, 1]), counts
    for line in text.splitlines():
        assert "None" not in line and "nan" not in line and "MISSED" not in line, line
    assert "| geometric mean of wgrad cells / best peer | 1.05 | 1.12 | 1.160, of 30 | pass, goal |" in text, text
    with contextlib.redirect_stdout(io.StringIO()) as said:
        whole = hopper_result()
        parts = [dict(runs=whole["runs"], problems=whole["problems"][:51], host=[]), dict(runs=[dict(RUN, date="later")], problems=whole["problems"][51:], host=whole["host"]),
                 dict(compile=whole["compile"])]
        files = []
        for i, part in enumerate(parts):
            files.append(str(WORK / f"hopper{i}.json"))
            pathlib.Path(files[i]).write_text(json.dumps(part))
        page = WORK / "page.md"
        page.write_text("<!-- hopper: begin --><!-- hopper: end --><!-- hopper-cells: begin --><!-- hopper-cells: end -->")
        assert hopper.main([*files, "--into", str(page), "--cells-into", str(page)]) == 0
        table = page.read_text()
        assert "| mixtral fc1 | wgrad |  | " in table and table.count("1.160 |") > 20 and "None" not in table and "nan" not in table, table
        assert "| geometric mean of wgrad cells / best peer | 1.05 | 1.12 | 1.160, of 30 | pass, goal |" in table and "Of single cells none misses" in table, table
        assert hopper.main(files[:1]) == 1
    assert "; two runs" in said.getvalue() and "later" in said.getvalue()


def hopper_misses():
    """Each change to a good result alone, and the figures that then miss or stay between required and goal."""
    def slower(name, op, split, factor, contestant=tables.HOPPER):
        return lambda r: of(r, name, op, split)["us"][contestant].update(median=tables.median(of(r, name, op, split), contestant) * factor)

    def without(contestant, admit=lambda p: True):
        return lambda r: [p["us"].pop(contestant, None) for p in r["problems"] if admit(p)]

    one = lambda p: tables.key(p) == ("gpt-oss fc1", "wgrad", "routed")
    cases = [
        (slower("gpt-oss fc1", "wgrad", "routed", 1.2), ["each cell", "0.967, worst of 90: gpt-oss fc1 wgrad routed", "MISSED"]),
        (slower("gpt-oss fc1", "wgrad", "routed", 1.17), ["each cell", "0.991, worst of 90: gpt-oss fc1 wgrad routed", "| pass |"]),
        (without(tables.TORCH, one), ["each cell", "worst of 89", "1 not measured", "MISSED"]),
        (without(tables.TORCH), ["each cell", "not measured", "MISSED"]),
        (without(tables.BEST, one), ["each cell", "1 not measured", "MISSED"]),
        (without(tables.FIRST, one), ["each cell", "1 not measured", "MISSED"]),
        (without(tables.HOPPER, one), ["each cell", "1 not measured", "MISSED"]),
        (without(tables.DENSE), ["dense of equal FLOPs", "not measured", "MISSED"]),
        (without(tables.EVEN), ["zipf16, forward and dgrad", "not measured", "MISSED"]),
        (without(tables.OVERWRITES), ["wgrad32, each:", "not measured", "MISSED"]),
        (lambda r: r["problems"].remove(of(r, "kimi-k2 ep8 fc1", "dgrad", "zipf16")), ["each cell", "1 not measured", "MISSED"]),
        (lambda r: r["runs"].append(dict(RUN, machine="a card, cuBLASLt 130100")), ["version", "130100", "MISSED"]),
        (lambda r: r["runs"].append(dict(RUN, machine="a card")), ["version", "1 not measured", "MISSED"]),
        (lambda r: r["runs"].clear(), ["version", "not measured", "MISSED"]),
        (lambda r: r["host"].pop(), ["host microseconds", "1 not measured", "MISSED"]),
        (lambda r: r["host"][0].update(net_us=5.5), ["host microseconds", "5.50, worst of 2: 32 groups", "MISSED"]),
        (lambda r: r["compile"].clear(), ["quickstart", "not measured", "MISSED"]),
        (lambda r: r["compile"][1].update(seconds=100.0), ["everything", "100.0", "| pass |"]),
        (slower("dsv3 ep32 fc2", "dgrad", "uniform", 0.94, tables.DENSE), ["dense of equal FLOPs", "0.949", "MISSED"]),
        (slower("qwen3-30b fc1", "forward", "zipf16", 1.05), ["zipf16, forward and dgrad", "qwen3-30b fc1 forward zipf16", "MISSED"]),
        (slower("mixtral fc1", "wgrad32", "uniform", 1.2), ["wgrad32, each", "mixtral fc1 wgrad32 uniform", "MISSED"]),
        (slower("dsv3 ep8 decode fc1", "forward", "uniform", 0.7, tables.TORCH), ["decode, each / best peer", "0.840", "MISSED"]),
        (slower("qwen3-30b decode fc1", "dgrad", "routed", 1.1), ["weights at the read-only rate", "0.883", "MISSED"]),
        (slower("dsv3 ep8 decode fc1", "forward", "zipf16", 0.96, tables.TORCH), ["ratio to torch", "0.996", "MISSED"]),
    ]
    for i, (change, expected) in enumerate(cases):
        result = hopper_result()
        change(result)
        text, good, short = judged(copy.deepcopy(result))
        assert good == (not any("MISSED" in line for line in short)) and good == ("MISSED" not in expected), (i, short)
        assert any(all(word in line for word in expected) for line in short), (i, expected, short)
        if "MISSED" in expected and i == 0:
            found = hopper.figures(result, SHAPES, PEERS)
            assert "MISSED" in hopper.in_short(hopper.losses_first(found))[0][2] and "MISSED" not in hopper.in_short(found)[0][2]
            found = hopper.missed(found)
            assert len(found) == 3 and found[2].startswith("| each cell / best peer | gpt-oss fc1 wgrad routed | 0.967 | "), found
    result = hopper_result()
    without(tables.TORCH, one)(result)
    of(result, "gpt-oss fc1", "wgrad", "routed")["refused"][tables.TORCH] = "out of memory"
    assert "| gpt-oss fc1 wgrad routed | not measured | MISSED | torch: out of memory |" in judged(result)[0]
    slower("dsv3 ep8 decode fc1", "forward", "uniform", 0.7, tables.TORCH)(result)
    assert "DeepGEMM masked" in judged(result)[0]


def peers_are_of_known_problems():
    known = {tables.key(p) for p in tables.problems(SHAPES, [], tables.OPS, tables.SPLITS)}
    for table in PEERS["tables"]:
        assert table["columns"][:4] == ["shape", "op", "split", "torch"]
        for row in table["rows"]:
            assert tuple(row[:3]) in known and len(row) == len(table["columns"]) and row[3] and any(row[4:]), row


def compilations_are_understood():
    found = compile_times.commands("nvcc", "80", WORK, 2)
    assert found["quickstart"][:3] == ["nvcc", "-gencode", "arch=compute_80,code=sm_80"] and "examples/quickstart.cu" in found["quickstart"], found
    assert (WORK / "everything.cu").exists() and found["everything"][-1] == str(WORK / "everything")
    said = "".join(f"ptxas info    : Compiling entry function '{name}' for 'sm_90a'\nptxas info    : Function properties for {name}\n    0 bytes stack frame\n"
                   f"ptxas info    : Used {registers} registers, used 1 barriers\nptxas info    : Compile time = {ms} ms\n"
                   for name, registers, ms in (("_Z1a", 40, "12.5"), ("_Z1b", 168, "900.000")))
    assert compile_times.kernels(said) == [(900.0, 168, "_Z1b"), (12.5, 40, "_Z1a")]


def plots_are_drawn():
    try:
        import matplotlib
        import matplotlib.pyplot  # noqa: F401
    except ImportError:
        (WORK / "result.json").write_text(json.dumps(hopper_result()))
        with contextlib.redirect_stdout(io.StringIO()) as said:
            plots.main([str(WORK / "result.json"), "--folder", str(WORK)])
        assert "matplotlib is not installed" in said.getvalue() and not list(WORK.glob("*.svg"))
        return "needs matplotlib: python3 -m pip install matplotlib"
    matplotlib.use("svg")
    (WORK / "result.json").write_text(json.dumps(hopper_result()))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        plots.main([str(WORK / "result.json"), "--folder", str(WORK)])
        once = {path.name: path.read_bytes() for path in WORK.glob("*.svg")}
        plots.main([str(WORK / "result.json"), "--folder", str(WORK)])
    assert sorted(once) == ["hopper-host.svg", "hopper-peers.svg", "hopper-rows.svg"], once.keys()
    for name, data in once.items():
        text = "".join(xml.etree.ElementTree.fromstring(data).itertext())
        assert len(data) < 100_000 and (WORK / name).read_bytes() == data, (name, len(data))
        for word in {"hopper-host.svg": ["32 groups"], "hopper-peers.svg": ["cublaslt best", "wgrad32, TFLOP/s", "zipf16"], "hopper-rows.svg": ["8192", "tegroup sm90", "limit"]}[name]:
            assert word in text, (name, word)
        (WORK / name).unlink()
    (WORK / "result.json").write_text(json.dumps(dict(runs=[], problems=[], host=[])))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        plots.main([str(WORK / "result.json"), "--folder", str(WORK)])
    assert said.getvalue().count("not drawn") == 3 and not list(WORK.glob("*.svg"))


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
    assert len(tegroup.backends) == 4 and tegroup.name(tegroup.backends[0]) == tables.HOPPER
    only = bench_gpu.Tegroup(WORK / "libtegroup.so", types.SimpleNamespace(lib=None, handle=4), device, ["cublaslt_loop", "sm90"])
    assert [only.name(b) for b in only.backends] == [tables.HOPPER, "tegroup cublaslt_loop"]
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


def held_out_shapes_are_drawn():
    shapes = tables.load(ROOT / "tests/bench/held_out.json")["gemm"]
    assert not {(s["N"], s["K"]) for s in shapes} & {(s["N"], s["K"]) for s in SHAPES}
    one, again, other = (tables.held_out(shapes, [], tables.OPS, seed) for seed in (7, 7, 8))
    assert one == again and one != other and len(one) == len(shapes) * len(tables.OPS) * 2
    for p in one:
        assert p["T"] % 2 == 1 and sum(p["sizes"]) == p["T"] and min(p["sizes"]) >= 0 and len(p["sizes"]) == p["E"], p


def rivals_are_summed_up():
    result = dict(problems=[made_up("mixtral fc1", "forward", "uniform", tegroup__sm90=100, cublaslt__first=99, cublaslt__best=90, torch=80),
                            made_up("mixtral fc2", "forward", "uniform", tegroup__sm90=100, cublaslt__first=110)])
    lines = tables.beside_rivals(result)
    assert lines == ["prefill forward: best cuBLASLt / tegroup sm90, time: mean 0.995 of 2; "
                     "worst 0.90 mixtral fc1 forward uniform, 1.10 mixtral fc2 forward uniform",
                     "prefill forward: best of all / tegroup sm90, time: mean 0.938 of 2; "
                     "worst 0.80 mixtral fc1 forward uniform, 1.10 mixtral fc2 forward uniform"], lines


failed = False
for test in (shapes_and_selection, held_out_shapes_are_drawn, rivals_are_summed_up, floors_count_what_must_move,
             everyone_has_a_turn_in_every_round, files_merge, tables_and_ratios,
             hopper_passes_and_prints_every_cell, hopper_misses, peers_are_of_known_problems, compilations_are_understood, plots_are_drawn,
             descriptors_are_complete, structures_have_their_sizes):
    try:
        why = test()
    except Exception:
        print(f"not ok bench_{test.__name__}")
        traceback.print_exc(file=sys.stdout)
        failed = True
    else:
        print(f"skip bench_{test.__name__} {why}" if why else f"ok bench_{test.__name__}")
sys.exit(failed)
