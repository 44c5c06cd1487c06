#!/usr/bin/env python3
"""What SM90's kernels cost: measured on a Hopper GPU, fitted, written into the table of src/cuda/sm90_kernels.h.

    tiles.py measure [--products 3500] [--seconds 540] [--seed N] [--out tests/bench/tiles.csv]    needs a GPU and torch
    tiles.py fit [--data tests/bench/tiles.csv] [--write] [--check] [--only NAME] [--start 1.0]                 needs numpy and scipy
    tiles.py compare [--data tests/bench/tiles.csv]    does the table agree with the times? needs numpy
    tiles.py simulate --out FILE       products with times by the table of now and 1% of noise: a fit must find its costs again

`measure` draws products of models' sizes and others, and has tegroup_plan_tune time every kernel that can run them, interleaved and with
cold operands. A line of the data is a product and the microseconds of each kernel, by its name. `fit` takes a fifth of the products
out, fits four costs of each kernel to the others by least squares of the logarithms (robust, since a clock may have moved), and says how
far the kernel that is predicted to be the fastest is from the one that was, in both sets. --check: the exit status is 1 where the table's ns
differ from the fit's by 2%, or a choice by the fit is in the mean 0.2% better. --start: costs to begin with, as a multiple of the table's.
--only: one kernel among costs that may be another GPU's; of its times is taken what they are beside those of the other kernels.
`compare` holds for a Hopper GPU other than the one that the table was fitted on: what counts for a choice is a kernel's time beside those
of the others, so it takes of each product measured over predicted time, divides by the mean of the operation's kernels, and fails where
the median of a kernel is 4% off, or a quarter of its products 10%, or the kernel has no times. The model is the library's own
(tests/bench/tile_model.c), so that nothing is said twice.
"""
import argparse
import csv
import ctypes
import datetime
import os
import random
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
TABLE = os.path.join(ROOT, "src", "cuda", "sm90_kernels.h")
LINE = re.compile(r"^    (KERNEL|MMA)\((\w+), (\d), (.*?)([\d.]+), ([\d.]+), ([\d.]+), ([\d.]+)\)", re.M)
PRODUCT = ["op", "groups", "rows", "n", "k", "most"]
BLOCKS = 132
SIZES = [(4096, 14336), (7168, 2048), (2048, 768), (2880, 2880), (5120, 1536), (6144, 10752), (4096, 1408), (3072, 8192)]


def table():
    """The kernels, in order: name, operation, whether it flips, costs; for one of pairs, the number of that of single blocks, whose costs it has."""
    found = []
    for kind, name, op, shape, *costs in LINE.findall(open(TABLE).read()):
        numbers = shape.split(",") if kind == "KERNEL" else ["0"] * 6
        flips, pairs = (int(number) for number in numbers[4:6])
        single = next((i for i, kernel in enumerate(found) if kernel["op"] == int(op) and kernel["shape"] == numbers[:5]), None) if pairs else None
        found.append(dict(name=name, op=int(op), shape=numbers[:5], flips=flips == 1, single=single, costs=[float(c) for c in costs]))
    return found


def slowness_of(path):
    """How slow memory was beside the tensor cores where these times were taken, by the GPU's name: tegroup_impl_sm90_slowness goes by its bus."""
    return 0.0 if "NVIDIA H200" in open(path).readline() else 1.0


def model(slowness):
    """tile_model of tile_model.c, with arrays."""
    import numpy

    library = os.path.join(ROOT, "build", "tile_model.so")
    os.makedirs(os.path.dirname(library), exist_ok=True)
    compiler = os.environ.get("CC", "cc").split()
    subprocess.run(compiler + ["-O2", "-shared", "-fPIC", "-I" + ROOT, os.path.join(HERE, "tile_model.c"), "-o", library, "-lm"], check=True)
    function = ctypes.CDLL(library).tile_model
    function.restype = None

    def predict(kernel, costs, products):
        us = numpy.zeros(len(products))
        products = numpy.ascontiguousarray(products, dtype=numpy.int64)
        four = (ctypes.c_double * 4)(*costs)
        function(ctypes.c_int32(kernel), four, ctypes.c_int64(BLOCKS), ctypes.c_double(slowness), ctypes.c_int64(len(products)), products.ctypes.data_as(ctypes.c_void_p),
                 us.ctypes.data_as(ctypes.c_void_p))
        return us
    return predict


def drawn(rng):
    """A product: operation, sizes of its groups, n, k."""
    op = rng.choice([1, 2, 3])
    groups = rng.choice([4, 8, 16, 32, 64, 128, 256])
    n, k = rng.choice(SIZES) if rng.random() < 0.5 else (64 * round(2 ** rng.uniform(2, 8)), 64 * round(2 ** rng.uniform(2, 7)))
    if rng.random() < 0.5:
        n, k = k, n
    mean = round(2 ** rng.uniform(1, 11))
    kind = rng.choice(["even", "drawn", "sixteens", "skewed"])
    if kind == "even":
        sizes = [mean] * groups
    elif kind == "skewed":
        power = rng.uniform(0.3, 1.5)
        shares = [(i + 1) ** -power for i in range(groups)]
        sizes = [round(mean * groups * s / sum(shares)) for s in shares]
        rng.shuffle(sizes)
    else:
        sizes = [round(mean * rng.lognormvariate(0, 0.5)) for _ in range(groups)]
        sizes = [s + -s % 16 for s in sizes] if kind == "sixteens" else sizes
    return op, sizes, n, k


def fits_memory(op, sizes, n, k):
    rows = sum(sizes)
    return rows > 0 and 2 * (rows * (n + k) + len(sizes) * n * k) < 20e9


def write(path, rows, note):
    names = [kernel["name"] for kernel in table()]
    with open(path, "w", newline="") as out:
        out.write("# " + note + "\n")
        lines = csv.writer(out)
        lines.writerow(PRODUCT + names)
        for product, times in rows:
            lines.writerow(list(product) + ["%.1f" % times[n] if n in times else "" for n in names])


def read(path):
    """Products and, by kernel name, their times; NaN where it did not run."""
    import numpy

    lines = list(csv.DictReader(line for line in open(path) if not line.startswith("#")))
    products = numpy.array([[int(line[c]) for c in PRODUCT] for line in lines], dtype=numpy.int64)
    names = [c for c in lines[0] if c not in PRODUCT]
    return products, {n: numpy.array([float(line[n]) if line[n] else float("nan") for line in lines]) for n in names}


def measure(options):
    sys.path.insert(0, HERE)
    import time

    import bench_gpu
    import torch

    tg = bench_gpu.tg
    device = bench_gpu.Device(torch)
    lt = bench_gpu.cublaslt.CublasLt("libcublasLt.so.13")
    tegroup = bench_gpu.Tegroup(os.path.join(ROOT, "build", "libtegroup.so"), lt, device, only=("sm90",))
    rng = random.Random(options.seed)
    kernels, rows, until = table(), [], time.time() + options.seconds
    names = {1: "forward", 2: "dgrad", 3: "wgrad"}
    note = "%s, driver %s, %s, seed %d" % (torch.cuda.get_device_name(), device.driver(), datetime.date.today(), options.seed)
    while len(rows) < options.products and time.time() < until:
        op, sizes, n, k = drawn(rng)
        if not fits_memory(op, sizes, n, k):
            continue
        problem = dict(op=names[op], E=len(sizes), T=sum(sizes), N=n, K=k, sizes=sizes, kind="prefill")
        operands = bench_gpu.Operands(torch, problem, check=False)
        times = (ctypes.c_float * tg.TEGROUP_TUNE_CANDIDATES)()
        first = tegroup.call(operands, tg.TEGROUP_BACKEND_SM90, tune=True, times=times, most=True).first_tile
        order = [kernel["name"] for kernel in kernels if kernel["op"] == op]
        own = next(name for name in order if name.endswith("%dX%d" % first))
        order = [own] + [name for name in order if name != own]  # as the library's candidates are: the plan's own, then the table's
        rows.append(((op, len(sizes), sum(sizes), n, k, max(sizes)), {name: 1e3 * ms for name, ms in zip(order, times) if ms > 0}))
        if len(rows) % 100 == 0:
            write(options.out, rows, note)
    write(options.out, rows, note)
    print(len(rows), "products ->", options.out)


def simulate(options):
    rng, predict, rows = random.Random(options.seed), model(1.0), []
    products = []
    while len(products) < options.products:
        op, sizes, n, k = drawn(rng)
        if fits_memory(op, sizes, n, k):
            products.append((op, len(sizes), sum(sizes), n, k, max(sizes)))
    by_kernel = [predict(i, kernel["costs"], products) for i, kernel in enumerate(table())]
    for at, product in enumerate(products):
        rows.append((product, {kernel["name"]: us[at] * rng.lognormvariate(0, 0.01) for kernel, us in zip(table(), by_kernel) if kernel["op"] == product[0]}))
    write(options.out, rows, "simulated")


def lost(products, times, predicted):
    """Time of the kernel that is predicted to be the fastest over that of the fastest, of each product."""
    import numpy

    measured = numpy.where(numpy.isnan(times), numpy.inf, times)
    guess = numpy.where(numpy.isnan(times), numpy.inf, predicted).argmin(axis=0)
    return measured[guess, numpy.arange(len(products))] / measured.min(axis=0)


def compare(options):
    import numpy

    predict, kernels = model(slowness_of(options.data)), table()
    products, times = read(options.data)
    wrong = []
    for op in (1, 2, 3):
        here = [(number, kernel) for number, kernel in enumerate(kernels) if kernel["op"] == op and kernel["single"] is None]
        missing = [kernel["name"] for _, kernel in here if kernel["name"] not in times or numpy.isnan(times[kernel["name"]]).all()]
        if missing:
            sys.exit(f"{options.data} has no times of {', '.join(missing)}: `make tiles`, on a Hopper GPU, measures them")
        some = products[:, 0] == op
        ratios = numpy.array([numpy.log(times[kernel["name"]][some] / predict(number, kernel["costs"], products[some])) for number, kernel in here])
        for (_, kernel), ratio in zip(here, ratios - numpy.nanmean(ratios, axis=0)):
            low, median, high = numpy.exp(numpy.nanquantile(ratio, [0.25, 0.5, 0.75]))
            print("%-16s measured over predicted, beside the other kernels: %.3f, half of the products %.3f to %.3f" % (kernel["name"], median, low, high))
            if not (0.96 < median < 1.04 and low > 0.9 and high < 1.1):
                wrong.append(kernel["name"])
    if wrong:
        sys.exit("costs in src/cuda/sm90_kernels.h that the measured times do not bear out: " + ", ".join(wrong) + ': `make fit BENCH="--write --only NAME"`')


def fit(options):
    import numpy
    from scipy.optimize import least_squares

    if not os.path.exists(options.data):
        sys.exit(f"{options.data} is not there: `tiles.py measure` on a Hopper GPU writes it")
    predict, kernels = model(slowness_of(options.data)), table()
    products, times = read(options.data)
    held_out = numpy.arange(len(products)) % 5 == 4
    fitted, wrong = [], []
    for number, kernel in enumerate(kernels):
        if kernel["single"] is not None:
            fitted.append(fitted[kernel["single"]])
            continue
        if options.only and kernel["name"] != options.only:
            fitted.append(kernel["costs"])
            continue
        if kernel["name"] not in times or numpy.isnan(times[kernel["name"]]).all():
            sys.exit(f"{options.data} has no times of {kernel['name']}: `make tiles`, on a Hopper GPU, measures them")
        use = (products[:, 0] == kernel["op"]) & ~numpy.isnan(times[kernel["name"]]) & ~held_out
        some, logs = products[use], numpy.log(times[kernel["name"]][use])
        if options.only:  # among costs of another GPU: as much faster or slower as the other kernels are there
            others = [(i, other) for i, other in enumerate(kernels) if other["op"] == kernel["op"] and other["single"] is None and i != number]
            logs = logs - numpy.nanmean([numpy.log(times[other["name"]][use] / predict(i, other["costs"], some)) for i, other in others], axis=0)
        start = numpy.maximum(options.start * numpy.array(kernel["costs"]), [1.0, 1.0, 1.0, 1.0])
        found = least_squares(lambda c: numpy.log(predict(number, c, some)) - logs, start, bounds=([1e-3, 0, 0.1, 0], [1e3, 1e4, 20, 200]),
                              x_scale=start, loss="soft_l1", f_scale=0.05)
        fitted.append(list(found.x))
        if abs(found.x[0] / kernel["costs"][0] - 1) > 0.02:
            wrong.append(kernel["name"] + ": ns")
        print("%-16s %5d products  ns %6.2f  epilogue %5.0f  tb %5.2f  us %5.1f   (table: %s)" % (
            (kernel["name"], use.sum()) + tuple(found.x) + ("  ".join("%g" % c for c in kernel["costs"]),)))
    print("\ntime of the predicted kernel over the fastest, geometric mean and worst: by the table of now, by this fit")
    for op, name in ((1, "forward"), (2, "dgrad"), (3, "wgrad")):
        here = [i for i, kernel in enumerate(kernels) if kernel["op"] == op and kernel["single"] is None]
        for title, chosen in (("fitted", ~held_out), ("held out", held_out)):
            some = products[:, 0] == op
            some &= chosen
            table_of = numpy.array([times[kernels[i]["name"]][some] for i in here])
            both = [lost(products[some], table_of, numpy.array([predict(i, costs[i], products[some]) for i in here]))
                    for costs in ([kernel["costs"] for kernel in kernels], fitted)]
            means = [numpy.exp(numpy.log(x).mean()) for x in both]
            if means[0] > 1.002 * means[1]:
                wrong.append(name + ": choices")
            print("%-8s %-9s %5d products  %s" % (name, title, some.sum(), "   ".join("%.4f, %.2f" % (mean, x.max()) for mean, x in zip(means, both))))
    if options.write:
        costs = iter(fitted)
        text = LINE.sub(lambda m: "    %s(%s, %s, %s%.2f, %.0f, %.2f, %.1f)" % ((m[1], m[2], m[3], m[4]) + tuple(next(costs))), open(TABLE).read())
        open(TABLE, "w").write(text)
        print("written; `make headers`, and tests/unit/test_tiles.c says which products have another kernel now")
    if options.check and wrong:
        sys.exit("the table is not the fit's: " + ", ".join(wrong))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("measure", "fit", "compare", "simulate"))
    parser.add_argument("--products", type=int, default=3500)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default=os.path.join(HERE, "tiles.csv"))
    parser.add_argument("--data", default=os.path.join(HERE, "tiles.csv"))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", metavar="NAME", help="fit this kernel alone, and leave the others' costs")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--start", type=float, default=1.0)
    options = parser.parse_args()
    {"measure": measure, "fit": fit, "compare": compare, "simulate": simulate}[options.command](options)


if __name__ == "__main__":
    main()
