#!/usr/bin/env python3
"""Pictures of a result of bench_gpu.py as SVG files: plots.py RESULT.json [--folder docs]; of losses: plots.py losses.csv

  hopper-rows.svg    forward TFLOP/s against rows a group, under the limits of the card (bench_gpu.py --sweep)
  hopper-peers.svg   every prefill shape and operation of one split beside the peers
  hopper-host.svg    host microseconds of a planned call
  losses.svg         losses of examples/train_moe.c by format (tests/bench/losses.csv)

A picture whose figures the result lacks is not drawn, and that is said. Needs matplotlib; without it nothing is drawn.
"""
import argparse
import csv
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tables
from tables import BEST, FIRST, HOPPER, TORCH

COLOURS = {HOPPER: "#0969da", TORCH: "#bf8700", FIRST: "#a5b4a9", BEST: "#57806a"}
INK, FAINT = "#1f2328", "#d0d7de"


def rate(p, us):
    return tables.flops(p) / us * 1e-6


def rows_plot(plt, result):
    problems = sorted((p for p in result["problems"] if p["kind"] == "sweep"), key=lambda p: p["T"])
    if not problems:
        return None
    figure, axes = plt.subplots(figsize=(7.2, 4))
    rows = [p["T"] // p["E"] for p in problems]
    limit = [rate(p, max(p["floors_us"]["flops"], p["floors_us"]["read"])) for p in problems]
    axes.plot(rows, limit, color=INK, linewidth=1, linestyle="--", label="limit: dense 8192³, weights read")
    for name in (TORCH, BEST, HOPPER):  # not the dense product: it reads the weights of one group
        points = [(r, rate(p, tables.median(p, name))) for r, p in zip(rows, problems) if tables.median(p, name)]
        if points:
            axes.plot(*zip(*points), color=COLOURS[name], marker="o", markersize=3, linewidth=1.5, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(rows, [str(r) for r in rows])
    axes.set_ylim(bottom=0)
    p = problems[0]
    axes.set(xlabel="rows a group", ylabel="TFLOP/s", title=f"forward, {p['E']} groups, n {p['N']}, k {p['K']}, BF16")
    axes.legend(frameon=False)
    return figure


def peers_plot(plt, result, split):
    problems = [p for p in result["problems"] if p["kind"] == "prefill" and p["split"] == split]
    if not problems:
        return None
    shapes = list(dict.fromkeys(p["name"] for p in problems))
    figure, all_axes = plt.subplots(len(tables.OPS), 1, figsize=(7.2, 8), sharex=True)
    names = (TORCH, FIRST, BEST, HOPPER)
    for axes, op in zip(all_axes, tables.OPS):
        for i, name in enumerate(names):
            bars = [(shapes.index(p["name"]) + 0.2 * (i - 1.5), rate(p, tables.median(p, name))) for p in problems if p["op"] == op and tables.median(p, name)]
            if bars:
                axes.bar(*zip(*bars), width=0.2, color=COLOURS[name])
        axes.set_ylabel(f"{op}, TFLOP/s")
    all_axes[-1].set_xticks(range(len(shapes)), [s.replace(" ", "\n", 1) for s in shapes], fontsize=7.5)
    all_axes[0].legend(handles=[plt.Rectangle((0, 0), 1, 1, color=COLOURS[n], label=n) for n in names], frameon=False, ncols=4,
                       loc="lower center", bbox_to_anchor=(0.5, 1.0), title=f"prefill, {split}, BF16")
    return figure


def host_plot(plt, result):
    hosts = sorted(result["host"], key=lambda h: (h["E"], h["us"]["median"]), reverse=True)
    if not hosts:
        return None
    figure, axes = plt.subplots(figsize=(7.2, 1.1 + 0.3 * len(hosts)))
    labels = [f"{h['contestant']}, {h['E']} groups" for h in hosts]
    launch = [h["minus_us"]["median"] for h in hosts]
    axes.barh(labels, launch, color=FAINT, label="empty kernels, or cublasLtMatmul")
    axes.barh(labels, [h["net_us"] for h in hosts], left=launch, color=COLOURS[HOPPER], label="tegroup")
    axes.set_xlabel("host microseconds a planned call")
    axes.grid(axis="x")
    axes.grid(False, axis="y")
    axes.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def losses_plot(plt, path):
    """A line a format: a column each of a table whose first is the step."""
    head, *lines = csv.reader(open(path))
    steps = [int(line[0]) for line in lines]
    figure, axes = plt.subplots(figsize=(7.2, 4))
    for i, name in enumerate(head[1:], 1):
        axes.plot(steps, [float(line[i]) for line in lines], linewidth=1.2, label=name)
    axes.set_yscale("log", base=2)
    axes.set_yticks([2, 2.5, 3, 4, 5], ["2", "2.5", "3", "4", "5"])
    axes.set(xlabel="step", ylabel="loss, nats a byte", title="make demo: training loss, mean of five steps")
    axes.legend(frameon=False)
    return figure


def style(plt):
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tegroup", "font.family": "sans-serif", "font.size": 9, "axes.titlesize": 9,
                         "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK, "text.color": INK, "axes.axisbelow": True,
                         "axes.grid": True, "axes.grid.axis": "y", "grid.color": FAINT, "grid.linewidth": 0.5})


def draw(figures, folder):
    """The files that were written; what could not be drawn is said."""
    written = []
    for name, figure in figures:
        path = folder / f"{name}.svg"
        if figure is None:
            print(f"{path}: not drawn, the result has no such figures")
            continue
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})  # the same picture from the same result, byte for byte
        written.append(path)
        print(path)
    return written


def main(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2] / "docs")
    parser.add_argument("--split", choices=tables.SPLITS, default="zipf16", help="of the bars; zipf16")
    options = parser.parse_args(words)
    try:
        import matplotlib
    except ImportError:
        print("plots: nothing drawn, matplotlib is not installed (python3 -m pip install matplotlib)")
        return
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    style(plt)
    if options.result.suffix == ".csv":
        draw([("losses", losses_plot(plt, options.result))], options.folder)
        return
    result = tables.merge([tables.load(options.result)])
    draw([("hopper-rows", rows_plot(plt, result)), ("hopper-peers", peers_plot(plt, result, options.split)), ("hopper-host", host_plot(plt, result))],
         options.folder)


if __name__ == "__main__":
    main(sys.argv[1:])
