"""How long and how deep the functions of src/ are.

check_functions.py  prints "ok NAME" or "not ok NAME" a test: no function takes more than 80 lines from its `{` to its `}`, and none has
                    more than 4 levels of blocks within it, but for those that EXCUSED names, each with its reason
"""
import glob
import os
import re
import sys

SRC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src")
LINES, LEVELS = 80, 4
EXCUSED = {
    # name: (lines and levels that this one may have, the reason)
}


def blank(found):
    return re.sub(r"[^\n]", " ", found.group(0))


def code(text):
    """The text with comments, strings and preprocessor lines blanked: lines stay where they are."""
    text = re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', blank, text, flags=re.S)
    return re.sub(r"^[ \t]*#(?:.*\\\n)*.*$", blank, text, flags=re.M)


def functions(text):
    """Name, first line, lines and levels of each function; methods of a struct are functions, lambdas are part of theirs."""
    open_braces, head, line = [], "", 1
    for c in code(text):
        line += c == "\n"
        if c == "{":
            within = any(kind == "function" for kind, *_ in open_braces)
            head = re.sub(r"\b(?:alignas|__launch_bounds__)\([^()]*\)", "", head)
            name = re.findall(r"\b(tegroup_\w+)\s*\(", head) or re.findall(r"\b([a-z]\w*)\s*\(", head)
            if within:
                kind = "values" if open_braces[-1][0] == "values" or re.search(r"[=,(]\s*\Z|return\s*\Z", head) else "block"
            else:
                kind = "function" if name and not re.match(r"\s*(?:typedef\s+)?(?:struct|enum|union)\b[^()]*\Z", head) else "type"
            open_braces.append([kind, name[0] if name and kind == "function" else "", line, 0])
            depth = sum(kind == "block" for kind, *_ in open_braces)
            for entry in open_braces:
                entry[3] = max(entry[3], depth)
            head = ""
        elif c == "}":
            kind, name, first, levels = open_braces.pop()
            if kind == "function":
                yield name, first, line - first + 1, levels
            head = ""
        elif c == ";":
            head = ""
        else:
            head += c


def main():
    found, long, deep = set(), [], []
    for path in sorted(glob.glob(os.path.join(SRC, "*", "*.h"))):
        for name, first, lines, levels in functions(open(path).read()):
            most_lines, most_levels, _ = EXCUSED.get(name, (LINES, LEVELS, ""))
            found.add(name)
            where = "%s:%d: %s" % (os.path.relpath(path, os.path.join(SRC, "..")), first, name)
            if lines > max(LINES, most_lines):
                long.append("%s has %d lines" % (where, lines))
            if levels > max(LEVELS, most_levels):
                deep.append("%s has %d levels" % (where, levels))
            if name in EXCUSED and lines <= LINES and levels <= LEVELS:
                long.append("%s needs no excuse any more" % where)
    gone = ["%s is excused and does not exist" % name for name in EXCUSED if name not in found]
    lost = [] if len(found) > 500 else ["only %d functions were found" % len(found)]
    failed = 0
    for name, problems in (("no function is longer than %d lines" % LINES, long), ("no function nests deeper than %d levels" % LEVELS, deep),
                           ("functions are found, and those excused exist", gone + lost)):
        for problem in problems:
            print("    " + problem)
        print(("not ok " if problems else "ok ") + name)
        failed |= bool(problems)
    return int(failed)


sys.exit(main())
