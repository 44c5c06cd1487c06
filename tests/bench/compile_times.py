#!/usr/bin/env python3
"""What the CUDA half costs to compile for one architecture: seconds of wall time and of the processor, and bytes of the file (nvcc
compresses large images, so that fewer bytes need not be less code).

  quickstart   examples/quickstart.cu by the command of its first line, with the architecture named
  everything   the whole library in one unit, two of the compiler's threads

Figures of a busy machine mean little: the load is printed with them. They are written for hopper.py. --kernels writes nothing and
compiles with one thread, for ptxas tells each kernel's time only then.
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
THREADS = 2


def commands(nvcc, arch, folder, threads):
    """What is compiled, and how, into folder/<name>."""
    code = f"-gencode arch=compute_{arch},code=sm_{arch}"
    first = (ROOT / "examples/quickstart.cu").read_text().splitlines()[0]
    line = re.fullmatch(r"/\* nvcc (.*) -o quickstart_gpu &&.*\*/", first)
    words = shlex.split(re.sub(r"-gencode \S+", "", line[1]))  # for one architecture in place of its own
    unit = folder / "everything.cu"
    unit.write_text('#define TEGROUP_IMPLEMENTATION\n#define TEGROUP_EXTERN\n#include "tegroup.h"\n')
    return dict(quickstart=[nvcc, *shlex.split(code), *words, "-o", str(folder / "quickstart")],
                everything=[nvcc, "-O3", "-split-compile", str(threads), *shlex.split(code), "-I.", "-c", str(unit), "-o", str(folder / "everything")])


def measure(command):
    """Seconds, processor seconds, bytes of what came out, and what the compiler said."""
    used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    begin, before = time.monotonic(), used()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seconds, cpu = time.monotonic() - begin, used() - before
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}\n{done.stdout}")
    return seconds, cpu, pathlib.Path(command[-1]).stat().st_size, done.stdout


def kernels(said):
    """Of each kernel, from ptxas -v: milliseconds of ptxas, registers, and its name; the slowest first."""
    found = re.finditer(r"Compiling entry function '(\w+)'.*?Used (\d+) registers.*?Compile time = ([\d.]+) ms", said, re.DOTALL)
    return sorted(((float(ms), int(registers), name) for name, registers, ms in (f.groups() for f in found)), reverse=True)


def machine(nvcc):
    processor = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    release = re.search(r"release .*", subprocess.run([nvcc, "--version"], stdout=subprocess.PIPE, text=True).stdout)
    return f"nvcc {release[0]}; {processor[1] if processor else 'processor unknown'}, {len(os.sched_getaffinity(0))} cores"


def main(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", default=os.environ.get("NVCC") or "nvcc")
    parser.add_argument("--arch", default="90a")
    parser.add_argument("--kernels", action="store_true", help="milliseconds and registers of each kernel by ptxas")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/compile.json")
    options = parser.parse_args(words)
    if not shutil.which(options.nvcc):
        raise SystemExit(f"{options.nvcc}: not found")
    where, entries = machine(options.nvcc), []
    print(f"{where}; sm_{options.arch}; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        for what, command in commands(options.nvcc, options.arch, pathlib.Path(folder), 1 if options.kernels else THREADS).items():
            seconds, cpu, size, said = measure(command[:1] + ["-Xptxas", "-v"] * options.kernels + command[1:])
            print(f"{what:<12} {seconds:7.1f} s  {cpu:7.1f} s of processor  {size:9d} bytes  load {os.getloadavg()[0]:.1f}  {shlex.join(command)}", flush=True)
            if options.kernels:
                subprocess.run(["c++filt"], input="".join(f"{ms:10.0f} ms {registers:4d} registers  {name}\n" for ms, registers, name in kernels(said)), text=True)
            entries.append(dict(what=what, seconds=seconds, cpu_seconds=cpu, bytes=size, machine=where, date=datetime.date.today().isoformat(),
                                load=os.getloadavg()[0], command=shlex.join(command)))
    if not options.kernels:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(dict(compile=entries)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
