#!/usr/bin/env python3
"""What the Hopper backend (sm90) must reach, judged from saved results; nothing is measured here.

  hopper.py RESULT.json [RESULT.json ...] [--into docs/performance.md] [--cells-into docs/lab/peers.md]

The files are those of bench_gpu.py and compile_times.py; several count as one. It prints the required figures, then every cell that
they are made of. The exit status is 1 where a required figure is missed. What was not measured is missed, too: torch, cuBLASLt called
by hand and the dense product must be in the run.

Cell: one shape, operation and split. Best peer: the fastest of torch, cuBLASLt's first algorithm and the best of its eight, which took
turns with sm90. Libraries that bench_gpu.py does not call stand in peers.json as measured beside torch at another time; what compares
with another run is the ratio to torch. That of gradients added to FP32 is to torch's others; a cell whose problems are of different
runs says so.
"""
import argparse
import dataclasses
import pathlib
import re
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tables
from tables import BEST, DENSE, EVEN, FIRST, HOPPER, OVERWRITES, TORCH

FOLDER = pathlib.Path(__file__).resolve().parent
CUBLASLT = 131000  # the first release whose grouped matmul is worth beating: 13.10
DENSE_SHAPES = ("mixtral", "dsv3 ep32")


class NotMeasured(Exception):
    """The text says what is missing."""


@dataclasses.dataclass
class Cell:
    name: str
    value: float = None  # None: not measured
    words: str = ""


@dataclasses.dataclass
class Figure:
    what: str
    required: float
    goal: float
    cells: list
    mean: bool = False     # the geometric mean of the cells counts, not the worst of them
    at_most: bool = False
    listed: bool = True    # False: its cells are those of another figure
    digits: int = 3

    def text(self, value):
        return f"{value:.{self.digits}f}"

    def reaches(self, value, bound):
        return value <= bound if self.at_most else value >= bound

    def verdict(self, value):
        if value is None or not self.reaches(value, self.required):
            return "MISSED"
        return "pass, goal" if self.reaches(value, self.goal) else "pass"

    def judge(self):
        """What was measured, in words, and the verdict."""
        there = [c for c in self.cells if c.value is not None]
        missing = len(self.cells) - len(there)
        if not there:
            return "not measured", "MISSED"
        if self.mean:
            value = statistics.geometric_mean(c.value for c in there)
            words = f"{self.text(value)}, of {len(there)}"
        else:
            worst = (max if self.at_most else min)(there, key=lambda c: c.value)
            value, failing = worst.value, sum(not self.reaches(c.value, self.required) for c in there)
            words = self.text(value) + f", worst of {len(there)}: {worst.name}" * (len(self.cells) > 1) + f"; {failing} miss" * (failing > 1)
        return words + f"; {missing} not measured" * (missing > 0), self.verdict(None if missing else value)


class Results:
    """Times by problem and contestant."""

    def __init__(self, result, peers):
        self.result, self.problems = result, {tables.key(p): p for p in result["problems"]}
        self.peers = {}  # (shape, op, split): [(peer, its speed over torch's)]
        for table in peers["tables"]:
            names = table["columns"][4:]
            for *key, torch, speeds in ((*row[:4], row[4:]) for row in table["rows"]):
                self.peers.setdefault(tuple(key), []).extend((n, s / torch) for n, s in zip(names, speeds) if s)

    def problem(self, key):
        if key not in self.problems:
            raise NotMeasured(f"{' '.join(key)}: not in the run")
        return self.problems[key]

    def us(self, key, contestant):
        p = self.problem(key)
        us = tables.median(p, contestant)
        if not us:
            raise NotMeasured(f"{contestant}: {p['refused'].get(contestant, 'not in the run')}")
        return us

    def best_peer(self, key):
        """Name and microseconds."""
        times = {BEST: self.us(key, BEST)}
        if key[1] != "wgrad32":  # torch has no such product
            times[TORCH] = self.us(key, TORCH)
        if FIRST not in self.problem(key)["refused"]:
            times[FIRST] = self.us(key, FIRST)
        for peer, ratio in self.peers.get(key, []):
            if peer == "DeepGEMM masked":
                times[peer] = times[TORCH] / ratio
        return min(times.items(), key=lambda t: t[1])

    def rate(self, key, us):
        """Microseconds as the tables print them."""
        p = self.problem(key)
        return f"{us:.1f} µs" if p["kind"] == "decode" else f"{tables.flops(p) / us * 1e-6:.0f} TFLOP/s"

    def ratio(self, key, what, us):
        """us over sm90's microseconds, and both in words."""
        own = self.us(key, HOPPER)
        return us / own, f"{self.rate(key, own)}, {what} {self.rate(key, us)}"

    def across(self, *keys):
        return "; two runs" if len({self.problem(k)["run"] for k in keys}) > 1 else ""


def against_peer(results, key):
    return results.ratio(key, *results.best_peer(key))


def against_dense(results, key):
    return results.ratio(key, DENSE, results.us(key, DENSE))


def against_uniform(results, key):
    """Uneven groups beside even ones: what is lost beyond filling a tile of 64 rows."""
    p = results.problem(key)
    filled = sum(p["rows"]) / sum(-(-rows // 64) * 64 for rows in p["rows"])
    return results.ratio(key, f"uniform x {filled:.3f}", results.us(key, EVEN) / filled)


def against_accumulation(results, key):
    """The limit of a gradient added to FP32: the mathematics at the rate of the one that overwrites BF16, or the bytes. At decode the
    one that overwrites waits for memory, too; there the bytes alone are the limit."""
    p = results.problem(key)
    limits = {"bytes at the copy rate": p["floors_us"]["copy"]}
    if p["kind"] == "prefill":
        limits["overwriting BF16"] = results.us(key, OVERWRITES)
    return results.ratio(key, *max(limits.items(), key=lambda t: t[1]))


def against_reading(results, key):
    return results.ratio(key, "weights at the read-only rate", results.problem(key)["floors_us"]["read"])


def against_absent(results, key):
    """The ratio to torch over that of the best library in peers.json; torch's wgrad stands beside wgrad32."""
    peer, theirs = max(results.peers[key], key=lambda t: t[1])
    beside = (key[0], "wgrad", key[2]) if key[1] == "wgrad32" else key
    ours = results.us(beside, TORCH) / results.us(key, HOPPER)
    return ours / theirs, f"{ours:.3f} of torch, {peer} {theirs:.3f}{results.across(key, beside)}"


def figures(result, shapes, peers):
    """Every figure, from a merged result, the problems of shapes.json and peers.json."""
    results = Results(result, peers)
    names = {kind: [s["name"] for s in shapes if s["kind"] == kind] for kind in ("prefill", "decode")}
    keys = lambda kind, ops, splits=tables.SPLITS: [(name, op, split) for split in splits for op in ops for name in names[kind]]

    def cells(function, chosen):
        out = []
        for key in chosen:
            try:
                out.append(Cell(" ".join(key), *function(results, key)))
            except NotMeasured as missing:
                out.append(Cell(" ".join(key), words=str(missing)))
        return out

    def noted(entries, name, value, words, wanted):
        """Cells of figures that are not of a problem."""
        found = {name(e): Cell(name(e), value(e), words(e)) for e in entries}
        return [found.get(w, Cell(w, words="not in the run")) for w in wanted]

    both, products = ("forward", "dgrad"), ("forward", "dgrad", "wgrad")
    prefill = cells(against_peer, keys("prefill", products))
    wgrad = [cell for cell, key in zip(prefill, keys("prefill", products)) if key[1] == "wgrad"]
    hosts = noted((h for h in result["host"] if h["contestant"] == HOPPER), lambda h: f"{h['E']} groups", lambda h: h["net_us"],
                  lambda h: f"{h['us']['median']:.2f} less {h['minus']} {h['minus_us']['median']:.2f}", ("32 groups", "128 groups"))
    compiled = {c: noted(result["compile"], lambda e: e["what"], lambda e: e["seconds"], lambda e: f"{e['bytes']} bytes; {e['machine']}", (c,))
                for c in ("quickstart", "everything")}
    versions = [int((re.search(r"cuBLASLt (\d+)", run["machine"]) or [0, 0])[1]) for run in result["runs"]]
    return [
        Figure("cuBLASLt called by hand, version", CUBLASLT, CUBLASLT, [Cell(f"run {i + 1}", v or None) for i, v in enumerate(versions)], digits=0),
        Figure("each cell / best peer", 0.98, 1.00, prefill),
        Figure("geometric mean of all cells / best peer", 1.02, 1.05, prefill, mean=True, listed=False),
        Figure("geometric mean of wgrad cells / best peer", 1.05, 1.12, wgrad, mean=True, listed=False),
        Figure("mixtral, dsv3 ep32, uniform, forward and dgrad / dense of equal FLOPs", 0.96, 1.00,
               cells(against_dense, [k for k in keys("prefill", both, ("uniform",)) if k[0].startswith(DENSE_SHAPES)])),
        Figure("zipf16, forward and dgrad / (own uniform x rows / rows rounded up to 64)", 0.97, 1.00,
               cells(against_uniform, keys("prefill", both, ("zipf16",)))),
        Figure("wgrad32, geometric mean / best peer", 1.08, 1.15, cells(against_peer, keys("prefill", ("wgrad32",))), mean=True),
        Figure("wgrad32, each: max(FLOPs at own overwriting rate, bytes at the copy rate) / time", 0.85, 0.92,
               cells(against_accumulation, keys("prefill", ("wgrad32",)) + keys("decode", ("wgrad32",)))),
        Figure("decode, each / best peer, with DeepGEMM masked", 0.98, 1.02, cells(against_peer, keys("decode", tables.OPS))),
        Figure("decode, forward and dgrad, each: weights at the read-only rate / time", 0.90, 0.95, cells(against_reading, keys("decode", both))),
        Figure("zipf16, ratio to torch / that of the best library of peers.json", 1.00, 1.00,
               cells(against_absent, [k for k in keys("prefill", tables.OPS, ("zipf16",)) + keys("decode", tables.OPS, ("zipf16",)) if k in results.peers])),
        Figure("host microseconds of a planned call, less empty kernels", 5, 3, hosts, at_most=True, digits=2),
        Figure("seconds to compile the quickstart", 25, 15, compiled["quickstart"], at_most=True, digits=1),
        Figure("seconds to compile everything, one architecture", 150, 90, compiled["everything"], at_most=True, digits=1),
    ]


def in_short(found):
    """Lines of Markdown, one figure each, and whether every required one is reached."""
    rows, good = [], True
    for f in found:
        words, verdict = f.judge()
        good = good and verdict != "MISSED"
        bound = lambda value: "at most " * f.at_most + f"{value:g}"
        rows.append([f.what, bound(f.required), bound(f.goal), words, verdict])
    return tables.rows_of(["figure", "required", "goal", "measured", ""], rows, left=5), good


def losses_first(found):
    return sorted(found, key=lambda f: f.judge()[1] != "MISSED")


def missed(found):
    """Lines of Markdown: the cells that miss what is required of each."""
    rows = [[f.what, c.name, "not measured" if c.value is None else f.text(c.value), c.words]
            for f in found if f.listed and not f.mean for c in f.cells if f.verdict(c.value) == "MISSED"]
    return tables.rows_of(["missed", "cell", "value", "of"], rows, left=4) if rows else ["Of single cells none misses what is required."]


def report(result, found):
    """Markdown, and whether every required figure is reached."""
    short, good = in_short(found)
    out = [f"- {run['machine']}; {run['date']}: `{run['command']}`" for run in result["runs"]] + ["", *short]
    for f in found:
        if f.listed:
            out += ["", f"{f.what}:", ""]
            out += tables.rows_of(["cell", "value", "" if f.mean else "verdict", "of"],
                                  [[c.name, "not measured" if c.value is None else f.text(c.value),
                                    "" if f.mean and c.value is not None else f.verdict(c.value), c.words] for c in f.cells], left=4)
    return "\n".join(out) + "\n", good


def beside_peers(result):
    """Markdown: prefill by rates of the dense product, and of the best peer, sm90, and their ratio for each split; decode by
    microseconds likewise."""
    results = Results(result, dict(tables=[]))
    out = []
    for kind, head in (("prefill", ["shape", "op", "dense", "even groups", "zipf16", "routed"]), ("decode", ["shape", "op", "even groups", "zipf16", "routed"])):
        rows = []
        for name, op in dict.fromkeys((p["name"], p["op"]) for p in result["problems"] if p["kind"] == kind):
            row = [name, op]
            if kind == "prefill":
                dense = tables.median(results.problem((name, op, "uniform")), DENSE)
                row.append(f"{tables.flops(results.problem((name, op, 'uniform'))) / dense * 1e-6:.0f}" if dense else "")
            for key in ((name, op, split) for split in tables.SPLITS):
                try:
                    theirs, own = results.best_peer(key)[1], results.us(key, HOPPER)
                except NotMeasured as missing:
                    row.append(str(missing))
                    continue
                shown = (theirs, own) if kind == "decode" else (tables.flops(results.problem(key)) / us * 1e-6 for us in (theirs, own))
                row.append(", ".join(f"{value:.0f}" for value in shown) + f", {theirs / own:.{2 if kind == 'decode' else 3}f}")
            rows.append(row)
        out += ["", f"{kind.capitalize()}, {'microseconds' if kind == 'decode' else 'TFLOP/s'}: best peer, `sm90`, ratio.", "", *tables.rows_of(head, rows, left=2)]
    return "\n".join(out[1:]) + "\n"


def main(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, nargs="+")
    parser.add_argument("--into", metavar="PAGE", help="put the figures, missed ones first, and sm90 beside the best peers between this page's markers")
    parser.add_argument("--cells-into", metavar="PAGE", help="put the cells that miss what is required of each between this page's markers")
    options = parser.parse_args(words)
    result = tables.merge(tables.load(path) for path in options.results)
    found = figures(result, tables.load(FOLDER / "shapes.json")["gemm"], tables.load(FOLDER / "peers.json"))
    if options.into:
        tables.put_between_markers(options.into, "\n".join([*in_short(losses_first(found))[0], "", beside_peers(result)]), "hopper")
    if options.cells_into:
        tables.put_between_markers(options.cells_into, "\n".join([*missed(found), ""]), "hopper-cells")
    text, good = report(result, found)
    print(text, end="")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
