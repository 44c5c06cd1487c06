"""The rooms of src/: which part uses which, by the names that each defines.

check_rooms.py          prints "ok NAME" or "not ok NAME" a test: parts use no room above their own, include what they use, and nothing
                        else, are at most 120 columns wide, and those in plain C compile by themselves
check_rooms.py --write  rewrites the #include lines of every part by what it uses

A part opens with its title, then `#pragma once` and what it includes, for editors and for these tests; tools/stitch.sh leaves both out. Public
declarations (*_types.h) are the contract, which every room may use.
"""
import functools
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SRC = os.path.join(ROOT, "src")
LEVELS = {"base": -1, "formats": 0, "core": 1, "cpu": 2, "cuda": 2, "gemm": 3, "layer": 4, "moe": 5, "ep": 6, "api": 7}
NAME = re.compile(r"\b(?:tegroup|TEGROUP)_\w+")
# What the C library gives, by the part that includes its headers.
TYPES_OF_C = re.compile(
    r"\b(?:u?int(?:8|16|32|64)_t|u?intptr_t|size_t|ptrdiff_t|U?INT(?:8|16|32|64)_(?:C|MAX|MIN)|SIZE_MAX|PTRDIFF_MAX|NULL)\b")
CALLS_OF_C = re.compile(
    r"\b(?:mem(?:set|cpy|move|cmp)|str(?:len|cmp|chr)|snprintf|omp_\w+|INFINITY|NAN|isnan|f(?:abs|ma|max|min)f?|exp(?:m1)?f?|log(?:1p)?f?"
    r"|erfcf?|tanhf?|sqrtf?|ldexpf?|frexpf?|floorf?|rintf?|copysignf?)\b")
INCLUDES = re.compile(r'\A(?:#pragma once\n|#include "[a-z]+/\w+\.h"\n)+\n?')


@functools.lru_cache(None)
def listed(*lists):
    """The numbered parts in the order of the stitched files, or of one of them."""
    parts = []
    for name in lists or ("tegroup.parts", "tegroup_cuda.parts"):
        for line in open(os.path.join(SRC, name)):
            words = line.split()
            if len(words) == 2 and words[0] == "part":
                parts.append(words[1])
    return parts


def read(part):
    """Its title, its include lines, the rest."""
    title, _, rest = open(os.path.join(SRC, part)).read().partition("\n")
    rest = rest.lstrip("\n")
    found = INCLUDES.match(rest)
    return title, found.group(0).split("\n") if found else [], rest[found.end():] if found else rest


def plain_c(part):
    """Whether it is a part of tegroup.h."""
    return part in listed("tegroup.parts")


def instances(name):
    return [name.replace("FSUF", "f32"), name.replace("FSUF", "f64"), name]


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)


def defined(text):
    """Names that a part defines: macros, functions with a body, types and their enumerators."""
    names = {m for m in re.findall(r"^#\s*define\s+(\w+)", text, re.M) if not re.search(r"^#\s*undef\s+%s\b" % m, text, re.M)}
    depth, chunk, body, is_type = 0, "", "", False
    for c in re.sub(r"^#(?:.*\\\n)*.*$", "", text, flags=re.M):
        if c == "{":
            if depth == 0:
                is_type = re.search(r"\b(struct|enum|union)\b", chunk) and "(" not in chunk
                called = [m for m in re.findall(r"\b((?:tegroup|TEGROUP)_\w+)\s*\(", chunk) if m != "TEGROUP_API"]
                names.update(NAME.findall(chunk) if is_type else called[:1])
                chunk, body = "", ""
            depth += 1
        elif c == "}":
            depth -= 1
            if depth == 0:
                names.update(re.findall(r"\b(TEGROUP_\w+)\s*(?:=|,|\Z|\n)", body) if is_type else [])
                chunk = "}" if is_type else ""
        elif depth > 0:
            body += c
        elif c == ";":
            if chunk.startswith("}") or "typedef" in chunk:
                pointer = re.search(r"\(\*\s*(\w+)", chunk)
                names.update([pointer.group(1)] if pointer else NAME.findall(chunk)[-1:])
            chunk = ""
        else:
            chunk += c
    return {i for n in names for i in instances(n)}


def declared(text):
    """Functions of which a part has a prototype: it need not include who defines them."""
    flat = re.sub(r"\{[^{}]*\}", ";", re.sub(r"^#(?:.*\\\n)*.*$", "", text, flags=re.M))
    static = "static inline|TEGROUP_IMPL_STATIC"
    names = set(re.findall(r"^(?:%s|TEGROUP_API\w*) [^;=(]*?\b(tegroup_\w+)\([^;{}]*\);" % static, flat, re.M))
    for line in re.findall(r"^(?:%s) tegroup_impl_\w+_function ([^;(]*);" % static, flat, re.M):  # by a function type
        names.update(NAME.findall(line))
    return names


def owner_of(name, owners):
    """Enumerators that a list makes are their list's."""
    if name.startswith("TEGROUP_DTYPE_"):
        return "formats/dtype_types.h"
    if re.match(r"TEGROUP_(OK|ERROR_)", name):
        return "base/status_types.h"
    return next((owners[n] for n in instances(name) if n in owners), None)


def uses():
    """Of each part the parts that it uses, and by which names."""
    parts, owners = listed(), {}
    texts = {p: without_comments(read(p)[2]) for p in parts}
    for p in parts:
        for name in defined(texts[p]):
            owners.setdefault(name, p)
    prototypes = {name: p for p in reversed(parts) if plain_c(p) for name in declared(texts[p]) if name.startswith("tegroup_impl_")}
    used = {p: {} for p in parts}
    for p in parts:
        own = defined(texts[p])
        for name in sorted(set(NAME.findall(texts[p]))):
            owner = owner_of(name, owners)
            if plain_c(p) and prototypes.get(name, p) != p:
                owner = prototypes[name]
            if owner and owner != p and name not in own and not re.search(r"^#\s*define\s+%s\b" % name, texts[p], re.M):
                used[p].setdefault(owner, []).append(name)
        for pattern, owner in ((TYPES_OF_C, "base/version.h"), (CALLS_OF_C, "base/build.h")):
            if pattern.search(texts[p]) and p != owner:
                used[p].setdefault(owner, []).append(pattern.search(texts[p]).group(0))
    return used


def wanted(part, used, order):
    own = declared(without_comments(read(part)[2]))
    needs = [d for d in used[part] if set(used[part][d]) - own]
    return ["#pragma once"] + ['#include "%s"' % d for d in sorted(needs, key=order.index)]


def report(name, problems):
    for line in problems:
        print("    " + line)
    print(("not ok " if problems else "ok ") + name)
    return bool(problems)


def compiles_alone(parts, compiler):
    """In a copy whose @each-real blocks are written out, as tools/stitch.sh does it."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            text = open(os.path.join(SRC, part)).read()

            def both(block):
                one = block.group(1)
                return one.replace("REAL", "float").replace("FSUF", "f32") + "\n" + one.replace("REAL", "double").replace("FSUF", "f64")

            text = re.sub(r"/\* @each-real \*/\n(.*?)/\* @end \*/\n", both, text, flags=re.S)
            os.makedirs(os.path.join(folder, os.path.dirname(part)), exist_ok=True)
            open(os.path.join(folder, part), "w").write(text)
        for part in parts:
            if not plain_c(part):
                continue
            command = [compiler, "-std=c99", "-fsyntax-only", "-w", "-x", "c", "-I" + folder, os.path.join(folder, part)]
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode:
                wrong.append("%s: %s" % (part, next((l for l in run.stderr.split("\n") if "error" in l), run.stderr[:200])))
    return wrong


def main():
    order, used = listed(), uses()
    if sys.argv[1:] == ["--write"]:
        for part in order:
            title, _, rest = read(part)
            text = "\n".join([title, ""] + wanted(part, used, order)) + "\n\n" + rest
            open(os.path.join(SRC, part), "w").write(text)
        return 0
    room = lambda part: part.split("/")[0]
    above = [
        "%s uses %s of %s" % (p, ", ".join(names[:4]), d)
        for p in order
        for d, names in used[p].items()
        if room(p) != room(d) and LEVELS[room(d)] >= LEVELS[room(p)] and not d.endswith("_types.h")
    ]
    lists = []
    for p in order:
        wrong = (set(wanted(p, used, order)) ^ set(read(p)[1])) - {""}
        if wrong:
            lists.append("%s: in one of what it uses and what it includes: %s" % (p, " ".join(sorted(wrong))))
    failed = report("parts use no room above their own", above)
    failed |= report("parts include what they use (tests/unit/check_rooms.py --write)", lists)
    wide = []
    for folder, _, files in sorted(os.walk(SRC)):
        for name in sorted(files):
            for number, line in enumerate(open(os.path.join(folder, name)), 1):
                if len(line.rstrip("\n")) > 120 and not line.startswith("#error"):  # whose text is one line
                    wide.append("%s/%s:%d" % (os.path.basename(folder), name, number))
    plain = [p for p in order if plain_c(p)]
    inlined = ["%s: %s" % (p, line) for p in plain for line in re.findall(r"^static inline .*", read(p)[2], re.M)]
    failed |= report("functions of tegroup.h are TEGROUP_IMPL_STATIC (base/linkage.h)", inlined)
    failed |= report("no line of src/ is wider than 120 columns", wide)
    failed |= report("parts in plain C compile by themselves", compiles_alone(order, os.environ.get("CC", "cc").split()[0]))
    return int(failed)


sys.exit(main())
