"""What a benchmark of grouped products is made of, apart from measuring: problems, floors, medians, tables, required ratios."""
import json
import pathlib
import random
import statistics
import textwrap

OPS = ("forward", "dgrad", "wgrad", "wgrad32")  # wgrad32: added to an FP32 gradient
SPLITS = ("uniform", "zipf16", "routed")
DENSE, TORCH, FIRST, BEST = "dense", "torch", "cublaslt first", "cublaslt best"
READ = "weights read"  # a kernel that reads those of groups with rows, and nothing else
HOPPER, PORTABLE, GROUPED, TUNED = "tegroup sm90", "tegroup portable", "tegroup cublaslt_grouped", "tegroup cublaslt_grouped tuned"
KNOWN = HOPPER + " largest group known"  # the hint that a user seldom has
EVEN, OVERWRITES = HOPPER + " even groups", HOPPER + " overwriting BF16"  # the same work in another way, for figures beside it


def sizes(shape, split):
    """Rows of each group."""
    if split != "uniform":
        return shape[split]
    each, rest = divmod(shape["T"], shape["E"])
    return [each + (g < rest) for g in range(shape["E"])]


def problems(shapes, names, ops, splits):
    """Every product asked for, those with even groups first. A name selects the shapes that contain it."""
    chosen = [s for s in shapes if not names or any(n in s["name"] for n in names)]
    return [dict(name=s["name"], kind=s["kind"], op=op, split=split, E=s["E"], T=s["T"], N=s["N"], K=s["K"], sizes=sizes(s, split))
            for split in splits for s in chosen for op in ops]


def held_out(shapes, names, ops, seed):
    """Every product of shapes that nothing was fitted to, with even groups and with sizes drawn from the seed."""
    rng, drawn = random.Random(seed), []
    for s in shapes:
        shares = [rng.lognormvariate(0, 1) for _ in range(s["E"])]
        skewed = [round(s["E"] * s["rows"] * share / sum(shares)) for share in shares]
        skewed[0] += 1 - sum(skewed) % 2
        drawn.append(dict(s, T=sum(skewed), skewed=skewed))
    return problems(drawn, names, ops, ("uniform", "skewed"))


def sweep(names):
    """Forward products of one model's layer with more and more rows in each of 8 even groups."""
    shapes = [dict(name=f"dsv3 fc1, {rows} rows a group", kind="sweep", E=8, T=8 * rows, N=4096, K=7168) for rows in (2 ** i for i in range(4, 14))]
    return problems(shapes, names, ("forward",), ("uniform",))


def key(problem):
    return problem["name"], problem["op"], problem["split"]


def flops(p):
    return 2 * p["T"] * p["N"] * p["K"]


def traffic(p):
    """Bytes that a product must read and write (BF16), and those of the weights that it must read."""
    active = sum(rows > 0 for rows in p["sizes"])
    x, y, matrix = 2 * p["T"] * p["K"], 2 * p["T"] * p["N"], p["N"] * p["K"]
    if p["op"] == "forward":
        return x + 2 * active * matrix, y, 2 * active * matrix
    if p["op"] == "dgrad":
        return y + 2 * active * matrix, x, 2 * active * matrix
    if p["op"] == "wgrad":  # an empty group's gradient is zeroed
        return x + y, 2 * p["E"] * matrix, 0
    return x + y + 4 * active * matrix, 4 * active * matrix, 0


def reads_alone(p):
    """Does the product write so little that it leaves hardly a line in L2 (tens of MB) that must go to memory?"""
    return traffic(p)[1] < 16 << 20


def floors_us(p, rates):
    """Least microseconds: operations at the dense rate; all bytes at the copy rate; at the read-only rate the weights that
    have rows, or for a weight gradient whatever it reads."""
    reads, writes, weights = traffic(p)
    return dict(flops=flops(p) / rates["dense_flops"] * 1e6, copy=(reads + writes) / rates["copy_bytes"] * 1e6,
                read=(weights or reads) / rates["read_bytes"] * 1e6)


def spread(times):
    """Median and the tenth and ninetieth percentile."""
    ordered = sorted(times)
    at = lambda q: ordered[min(len(ordered) - 1, int(q * len(ordered)))]
    return dict(median=statistics.median(ordered), p10=at(0.1), p90=at(0.9))


def merge(results):
    """Several files as one; of what was measured twice the first stands. compile: what compile_times.py wrote."""
    merged = dict(runs=[], problems=[], host=[], compile=[])
    names = dict(problems=key, host=lambda h: (h["contestant"], h["E"]), compile=lambda c: c["what"])
    for result in results:
        offset = len(merged["runs"])
        merged["runs"] += result.get("runs", [])
        for part, name in names.items():
            known = {name(e) for e in merged[part]}
            new = [e for e in result.get(part, []) if name(e) not in known]
            merged[part] += [dict(p, run=p["run"] + offset) for p in new] if part == "problems" else new
    return merged


def median(problem, contestant):
    return problem["us"].get(contestant, {}).get("median")


def rows_of(header, rows, left=3):
    """A table of Markdown whose first columns are words."""
    line = lambda cells: "| " + " | ".join(cells) + " |"
    return [line(header), "|" + "|".join("---" if i < left else "---:" for i in range(len(header))) + "|"] + [line(r) for r in rows]


def table(result):
    """Markdown: what was measured on what, then prefill and sweep in TFLOP/s and decode in microseconds, the losses first of each."""
    out = []
    for run in result["runs"]:
        out += [f"- {run['machine']}; {run['date']}: `{run['command']}`",
                f"  In that run: dense 8192³ {run['rates']['dense_flops'] / 1e12:.0f} TFLOP/s, copy {run['rates']['copy_bytes'] / 1e12:.2f} TB/s "
                f"(read plus write), read-only {run['rates']['read_bytes'] / 1e12:.2f} TB/s."]
    order = [READ, DENSE, TORCH, FIRST, BEST]
    for kind, unit in (("prefill", "TFLOP/s"), ("sweep", "TFLOP/s"), ("held out", "TFLOP/s"), ("decode", "µs")):
        chosen = [p for p in result["problems"] if p["kind"] == kind]
        if not chosen:
            continue
        names = {name for p in chosen for name in p["us"]}
        columns = [c for c in order if c in names] + sorted(names - set(order))
        rivals, ours = {TORCH, FIRST, BEST}, names - {READ, DENSE, TORCH, FIRST, BEST}
        fastest = lambda p, of: min((median(p, name) for name in of if median(p, name)), default=1e99)
        if kind != "sweep":
            chosen.sort(key=lambda p: fastest(p, rivals) / fastest(p, ours)) # losses first
        rate = (lambda p, us: flops(p) / us * 1e-6) if unit == "TFLOP/s" else (lambda p, us: us)
        digits = 0 if unit == "TFLOP/s" else 1

        def cell(p, contestant):
            us = p["us"].get(contestant)
            return f"{rate(p, us['median']):.{digits}f} ±{50 * (us['p90'] - us['p10']) / us['median']:.0f}%" if us else ""

        out += ["", f"{kind.capitalize()}, {unit}: median, and half of the way from the 10th to the 90th percentile. Limits: operations at the dense "
                f"rate, all bytes at the copy rate, at the read-only rate the weights of groups with rows (weight gradients: all that is read).", ""]
        out += rows_of(["shape", "op", "split", *columns, "limit: dense", "copy", "read", "SM MHz", "W"],
                       [[p["name"], p["op"], p["split"], *(cell(p, c) for c in columns),
                         *(f"{rate(p, p['floors_us'][f]):.{digits}f}" for f in ("flops", "copy", "read")),
                         f"{p['clock_mhz']:.0f}", f"{p['power_w']:.0f}"] for p in chosen])
    refused = sorted({(name, reason) for p in result["problems"] for name, reason in p["refused"].items()})
    if refused:
        out += ["", "Not measured:", ""] + [f"- {name}: {reason}" for name, reason in refused]
    if result["host"]:
        out += ["", "Host microseconds a call, median of the calls on an idle stream, tiny groups:", ""]
        out += rows_of(["contestant", "groups", "minus", "call", "10th", "90th percentile", "minus", "left"],
                       [[h["contestant"], str(h["E"]), h["minus"], f"{h['us']['median']:.2f}", f"{h['us']['p10']:.2f}", f"{h['us']['p90']:.2f}",
                         f"{h['minus_us']['median']:.2f}", f"{h['net_us']:.2f}"] for h in result["host"]])
    return "\n".join(out) + "\n"


def summary(result):
    """The ratios that are required of the other backends (hopper.py judges sm90): lines of text, and whether each that was measured holds."""
    lines, good = [], True

    def judge(what, found, required, at_most=False):
        nonlocal good
        if not found:
            lines.append(f"{what}: NOT MEASURED (required {'at most ' if at_most else ''}{required})")
            return
        worst = max(found) if at_most else min(found)
        holds = worst[0] <= required if at_most else worst[0] >= required
        failing = sum(v > required if at_most else v < required for v, _ in found)
        lines.append(f"{what}: {worst[0]:.2f} {'holds' if holds else 'FAILS'} (required {'at most ' if at_most else ''}{required}; worst of {len(found)}: "
                     f"{worst[1]}{f'; {failing} fail' if failing else ''})")
        good = good and holds

    def ratios(numerator, denominator, admit):
        return [(median(p, numerator) / median(p, denominator), " ".join(key(p))) for p in result["problems"]
                if admit(p) and median(p, numerator) and median(p, denominator)]

    by_hand = [(min(m for m in (median(p, FIRST), median(p, BEST)) if m), p) for p in result["problems"] if median(p, BEST) and median(p, TUNED)]
    judge("cublaslt_grouped tuned / cuBLASLt by hand, best", [(us / median(p, TUNED), " ".join(key(p))) for us, p in by_hand], 0.97)
    judge("portable / dense, prefill, uniform, forward and dgrad",
          ratios(DENSE, PORTABLE, lambda p: p["kind"] == "prefill" and p["split"] == "uniform"), 0.50)
    judge("portable, decode, forward and dgrad: weights at the read-only rate / time",
          [(p["floors_us"]["read"] / median(p, PORTABLE), " ".join(key(p))) for p in result["problems"]
           if p["kind"] == "decode" and p["op"] in ("forward", "dgrad") and median(p, PORTABLE)], 0.75)
    for what in (PORTABLE, GROUPED):
        judge(f"host microseconds, {what}", [(h["net_us"], f"{h['E']} groups") for h in result["host"] if h["contestant"] == what], 5, at_most=True)
    return lines, good


def beside_rivals(result):
    """sm90 beside the best cuBLASLt, and beside the best of all, losses first: lines of text, a kind and an operation each."""
    lines = []
    groups = sorted({(p["kind"], p["op"]) for p in result["problems"]})
    for kind, op in groups:
        for ours in (HOPPER, KNOWN):
            for what, rivals in (("best cuBLASLt", (FIRST, BEST)), ("best of all", (FIRST, BEST, TORCH))):
                found = sorted((min(median(p, r) for r in rivals if median(p, r)) / median(p, ours), " ".join(key(p))) for p in result["problems"]
                               if (p["kind"], p["op"]) == (kind, op) and median(p, ours) and any(median(p, r) for r in rivals))
                if found:
                    mean = statistics.geometric_mean(ratio for ratio, _ in found)
                    worst = ", ".join(f"{ratio:.2f} {name}" for ratio, name in found[:4])
                    lines.append(f"{kind} {op}: {what} / {ours}, time: mean {mean:.3f} of {len(found)}; worst {worst}")
    return lines


OF = " of "  # between a backend's name and that of another build of the library


def other_builds(result):
    """What each backend of another build takes beside this one's, in turns alike: a line for each pair."""
    pairs = sorted({name for p in result["problems"] for name in p["us"] if OF in name})
    lines = []
    for name in pairs:
        found = sorted((median(p, name) / median(p, name.split(OF)[0]), " ".join(key(p))) for p in result["problems"]
                       if median(p, name) and median(p, name.split(OF)[0]))
        if found:
            mean = statistics.geometric_mean(ratio for ratio, _ in found)
            lines.append(f"{name} / this one, time: mean {mean:.3f} of {len(found)}, from {found[0][0]:.3f} ({found[0][1]}) to {found[-1][0]:.3f} ({found[-1][1]})")
    return lines


def wrapped(text, columns=120):
    """Markdown whose lines are no longer than the documentation's, but for those of tables."""
    out = []
    for line in text.split("\n"):
        longer = len(line) > columns and not line.lstrip().startswith("|")
        indent = "  " if line.startswith(("- ", "  ")) else ""
        out += textwrap.wrap(line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) if longer else [line]
    return "\n".join(out)


def put_between_markers(path, text, name="bench_gpu"):
    """Replace what stands between a page's two markers of that name."""
    markers = [f"<!-- {name}: {place} -->" for place in ("begin", "end")]
    page = pathlib.Path(path).read_text()
    before, begin, rest = page.partition(markers[0])
    _, end, after = rest.partition(markers[1])
    if not begin or not end:
        raise SystemExit(f"{path} lacks the lines {markers[0]} and {markers[1]}")
    pathlib.Path(path).write_text(f"{before}{begin}\n{wrapped(text)}{end}{after}")


def load(path):
    return json.loads(pathlib.Path(path).read_text())
