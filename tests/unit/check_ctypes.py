"""Compare examples/tegroup_ctypes.py with a C compiler's view of tegroup.h: check_ctypes.py COMPILER FOLDER. Used by test_ctypes.sh."""
import ctypes
import os
import re
import subprocess
import sys

root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(root, "examples"))
sys.dont_write_bytecode = True
import tegroup_ctypes as tg  # noqa: E402


def facts():
    """(C expression, number in Python) of every struct's size, every member's offset and size, every constant."""
    for name, struct in tg.structs.items():
        yield "sizeof(%s)" % name, ctypes.sizeof(struct)
        for field, kind in struct._fields_:
            yield "offsetof(%s, %s)" % (name, field), getattr(struct, field).offset
            yield "sizeof(((%s *)0)->%s)" % (name, field), ctypes.sizeof(kind)
    for name, values in tg.enums.items():
        yield "sizeof(%s)" % name, ctypes.sizeof(ctypes.c_int)
        for constant, value in values.items():
            yield constant, value
    for name in dir(tg):
        if name.startswith("TEGROUP_") and not any(name in values for values in tg.enums.values()):
            yield name, getattr(tg, name)


def main(compiler, folder):
    wanted = list(facts())
    source, program = os.path.join(folder, "facts.c"), os.path.join(folder, "facts")
    with open(source, "w", encoding="utf-8") as file:
        file.write('#include "tegroup.h"\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n')
        file.writelines('    printf("%%lld\\n", (long long)(%s));\n' % expression for expression, _ in wanted)
        file.write("    return 0;\n}\n")
    subprocess.run([compiler, "-std=gnu11", "-I", root, source, "-o", program], check=True)
    numbers = [int(line) for line in subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()]
    bad = ["%s is %d in C, %d in Python" % (e, c, p) for (e, p), c in zip(wanted, numbers) if c != p]
    with open(tg.HEADER, encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", " ", file.read(), flags=re.S)
    public = text[:text.index("#define TEGROUP_IMPLEMENTATION_INCLUDED")]
    for what, found, pattern in (("struct", tg.structs, r"^typedef struct (\w+)"), ("enum", tg.enums, r"^typedef enum (\w+)"),
                                 ("function", tg.functions, r"\b(tegroup_(?!impl)\w+)\s*\((?=[^)]*\);)")):
        names = [n for n in re.findall(pattern, public, re.M) if what != "function" or n not in tg.structs]
        bad += ["%s %s is missing in Python" % (what, n) for n in names if n not in found]
        bad += [] if names else ["no %s found in the header" % what]
    print("\n".join(bad) if bad else "%d facts of %d structs, %d enums and %d functions agree" % (
        len(wanted), len(tg.structs), len(tg.enums), len(tg.functions)))
    return bool(bad) or len(numbers) != len(wanted)


sys.exit(main(*sys.argv[1:]))
