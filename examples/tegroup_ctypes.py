"""tegroup for Python: every type, constant and function of tegroup.h through ctypes, under its C name.

    import tegroup_ctypes as tg
    library = tg.load("build/libtegroup.so")
    desc = tg.tegroup_gemm_desc(op=tg.TEGROUP_OP_FORWARD, space=tg.TEGROUP_SPACE_DEVICE)
    library.tegroup_gemm(plan, desc, stream)     # raises tg.Refused with the library's own words

Nothing is written down twice: the header beside the library's source is read when this module is imported, and
tests/unit/test_ctypes.sh compares the result with what a C compiler makes of it. Structs take keyword arguments; struct_size
is filled in. The last parameter of a function, tegroup_error *, is left out: a status other than OK becomes an exception.
library.raw holds the functions as C has them.
"""
import ctypes
import os
import re

HEADER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tegroup.h")

_PLAIN = {
    "void": None, "char": ctypes.c_char, "int": ctypes.c_int, "float": ctypes.c_float, "double": ctypes.c_double,
    "size_t": ctypes.c_size_t, "uint8_t": ctypes.c_uint8, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
}
structs, enums, functions = {}, {}, {}  # by C name; enums: name -> {constant: value}


class Refused(Exception):
    """A call that tegroup refused: `status` is its number, the text names the field, the rule, expected and got."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class _Struct(ctypes.Structure):
    def __init__(self, *arguments, **fields):
        if self._fields_ and self._fields_[0][0] == "struct_size" and not arguments:
            fields.setdefault("struct_size", ctypes.sizeof(self))
        super().__init__(*arguments, **fields)


def _type(text, passed=False):
    """The ctypes type of a C type. Pointers to structs are typed when `passed` as arguments, opaque as members."""
    words = [w for w in text.replace("*", " * ").split() if w not in ("const", "struct")]
    name, stars = words[0], words.count("*")
    if stars == 1 and name == "char" and "const" in text:
        return ctypes.c_char_p
    if stars == 1 and passed and name in structs:
        return ctypes.POINTER(structs[name])
    if stars:
        return ctypes.c_void_p
    return ctypes.c_int if name in enums else structs[name] if name in structs else _PLAIN[name]


def _members(body):
    """(name, type) of each member: `type a, b;`, `type *a;`, `type a[N];`."""
    for declaration in filter(None, (d.strip() for d in body.split(";"))):
        base, declarators = re.match(r"((?:const |struct )*\w+)(.*)", declaration, re.S).groups()
        for declarator in declarators.split(","):
            stars, name, extent = re.match(r"([\s*]*(?:const)?[\s*]*)\b(\w+)\s*(?:\[(\w+)\])?$", declarator.strip()).groups()
            kind = _type(base + stars)
            yield name, kind * int(globals().get(extent, extent)) if extent else kind


def _value(text):
    return int(eval(re.sub(r"INT64_C\((\w+)\)|\b(0x[0-9a-fA-F]+|\d+)u\b", r"\1\2", text), {"__builtins__": {}}, globals()))


def _read(source):
    source = re.sub(r"\\\n", " ", re.sub(r"/\*.*?\*/", " ", source, flags=re.S))
    source = source[:re.search(r"^#define TEGROUP_IMPLEMENTATION_INCLUDED", source, re.M).start()]
    lists, prefix = dict(re.findall(r"^#define (TEGROUP_\w+_LIST)\(X\) (.*)$", source, re.M)), ""
    source = re.sub(r"\b(?:%s)\s+(\w+);" % "|".join(re.findall(r"^typedef [^;{]*?\(\*(\w+)\)", source, re.M)), r"void *\1;", source)  # functions' addresses
    pattern = re.compile(
        r"^#define TEGROUP_IMPL_ENUMERATE\([^)]*\) (?P<prefix>\w+)##|^#define (?P<constant>TEGROUP_(?!API|IMPL)\w+)[ \t]+(?P<value>\(?[\w( <)-]+)$|"
        r"^typedef enum (?P<enum>\w+) \{(?P<constants>.*?)\} \w+;|^typedef struct (?P<struct>\w+) \{(?P<members>.*?)\} \w+;|"
        r"^TEGROUP_API(?P<status>_STATUS)?(?P<result>[\w\s*]*?)\b(?P<function>tegroup_\w+)\s*\((?P<parameters>.*?)\);", re.M | re.S)
    for at in pattern.finditer(source):
        if at["prefix"]:
            prefix = at["prefix"]
        elif at["constant"]:
            globals()[at["constant"]] = _value(at["value"])
        elif at["enum"]:
            last, values = -1, {}
            named = re.sub(r"(\w+_LIST)\(\w+\)", lambda m: "".join(
                "%s%s = %s," % (prefix, name, value) for name, value in re.findall(r"\bX\((\w+), *(\w+)", lists[m[1]])), at["constants"])
            for constant in filter(None, (c.strip() for c in named.split(","))):
                name, _, value = constant.partition("=")
                last = globals()[name.strip()] = values[name.strip()] = _value(value) if value else last + 1
            enums[at["enum"]] = values
        elif at["struct"]:
            members = re.sub(r"(\w+_LIST)\(\w+\)", lambda m: "".join(  # a list of functions: their addresses
                "void *%s;" % name for name in re.findall(r"\bX\((\w+)", lists[m[1]])), at["members"])
            structs[at["struct"]] = globals()[at["struct"]] = type(at["struct"], (_Struct,), {"_fields_": list(_members(members))})
        else:
            parameters = [p.strip() for p in at["parameters"].split(",") if p.strip() != "void"]
            functions[at["function"]] = (
                ctypes.c_int if at["status"] else _type(at["result"], passed=True),
                [ctypes.c_void_p if "[" in p else _type(re.sub(r"\w+$", "", p), passed=True) for p in parameters],
                bool(at["status"]))


with open(HEADER, encoding="utf-8") as _file:
    _read(_file.read())


def _raising(library, function):
    def call(*arguments):
        error = tegroup_error()
        status = function(*arguments, error)
        if status != TEGROUP_OK:
            text = ctypes.create_string_buffer(512)
            library.raw.tegroup_error_text(error, text, 512)
            raise Refused(status, text.value.decode())
    return call


class load:
    """libtegroup.so with every function of the header. One of another version than the header is refused."""

    def __init__(self, path):
        self.raw = ctypes.CDLL(os.path.abspath(path))
        for name, (result, parameters, has_status) in functions.items():
            function = getattr(self.raw, name)
            function.restype, function.argtypes = result, parameters
            setattr(self, name, _raising(self, function) if has_status else function)
        if self.tegroup_version() != TEGROUP_VERSION:
            raise ImportError("%s is version %d, %s is %d" % (path, self.tegroup_version(), HEADER, TEGROUP_VERSION))
