"""Pickles that run code through names that honest checkpoints use, which call or look up what they are handed.

Each kind is a function of a random generator and a mark, the file that its code leaves behind. No name in them is
dangerous by itself. The classes of other libraries that some of them use stand in `gadgets`.
"""

import random
from collections.abc import Callable

from hostile import call, data, in_zip, name, text, whole

Kind = Callable[[random.Random, str], bytes]
LOADER = name("torch.storage", "_load_from_bytes")
NAMESPACE = name("types", "SimpleNamespace")


def writer(mark: str) -> bytes:
    """A pickle that leaves the mark with a class of torch's own, which scanners do not list."""
    return whole(call(name("torch._C", "PyTorchFileWriter"), text(mark)))


def pickled(chance: random.Random, mark: str) -> bytes:
    """The bytes of a second pickle, plain or as text."""
    inner = writer(mark)
    if chance.random() < 0.5:
        return data(inner)
    return call(name("_codecs", "encode"), text(inner.decode("latin-1")), text("latin1"))


def partial(chance: random.Random, function: bytes, *args: bytes) -> bytes:
    """A partial object: called, made without its constructor, or given its function afterwards."""
    whole_args = b"(" + function + b"".join(args) + b"t"
    later = b"(" + function + b"(" + b"".join(args) + b"t}Ntb"
    return chance.choice(
        [
            name("functools", "partial") + whole_args + b"R",
            name("functools", "partial") + whole_args + b"\x81",
            call(name("functools", "partial"), name("builtins", "list")) + later,
            call(name("copyreg", "__newobj__"), name("functools", "partial"), function, *args),
        ]
    )


def method(chance: random.Random, mark: str) -> bytes:
    return call(name("builtins", "getattr"), call(name("pathlib", "PosixPath"), text(mark)), text("touch"))


def code(chance: random.Random, mark: str) -> bytes:
    """Something that leaves the mark when it is called without arguments."""
    return chance.choice(
        [
            lambda: partial(chance, LOADER, pickled(chance, mark)),
            lambda: method(chance, mark),
            lambda: partial(chance, name("torch._C", "PyTorchFileWriter"), text(mark)),
        ]
    )()


def having(chance: random.Random, attribute: str, value: bytes) -> bytes:
    """An object with one attribute, in the ways a pickle can make one."""
    state = b"}" + text(attribute) + value + b"s"
    return chance.choice(
        [
            call(NAMESPACE) + state + b"b",
            NAMESPACE + b")\x81" + state + b"b",
            NAMESPACE + b")" + state + b"\x92",
            name("argparse", "Namespace") + b")" + state + b"\x92",
            name("argparse", "Namespace") + b")\x81" + state + b"b",
            name("collections", "Counter") + b")\x81" + state + b"b",
            name("torch.nn.modules.linear", "Identity") + b")\x81" + state + b"b",
            call(
                name("copyreg", "_reconstructor"),
                name("argparse", "Namespace"),
                name("builtins", "object"),
                b"N",
            )
            + b"N"
            + state
            + b"\x86b",
        ]
    )


def kept(chance: random.Random, evil: bytes) -> bytes:
    """A pickle of a state dict with this in it, in one of the places that values have."""
    before = b"}" + text("epoch") + b"K\x03s"
    return whole(
        chance.choice(
            [
                evil,
                before + text("extra") + evil + b"s",
                evil + b"0" + before,
                b"](" + b"K\x01" + evil + b"e",
                b"(" + evil + before + b"t",
            ]
        ),
        chance.choice([2, 3, 4]),
    )


def called(chance: random.Random, function: bytes, *args: bytes) -> bytes:
    """A call by each of the operations that make one."""
    inner = b"(" + b"".join(args) + b"t"
    return chance.choice([function + inner + b"R", b"(" + function + b"".join(args) + b"o"])


def generator(chance: random.Random, mark: str) -> bytes:
    """NumPy's functions for random generators call their second argument with the first."""
    maker = name("numpy.random._pickle", chance.choice(["__generator_ctor", "__randomstate_ctor"]))
    function, argument = chance.choice(
        [(LOADER, pickled(chance, mark)), (name("torch._C", "PyTorchFileWriter"), text(mark))]
    )
    return kept(chance, called(chance, maker, argument, function))


def mapping(chance: random.Random, mark: str) -> bytes:
    """What makes a dict of an argument calls its method `keys`."""
    thing = having(chance, "keys", code(chance, mark))
    kind = chance.choice(
        ["builtins dict", "collections OrderedDict", "collections UserDict", "collections defaultdict"]
    )
    args = [b"N"] * kind.endswith("default" + "dict") + [thing]
    return kept(chance, called(chance, name(*kind.split()), *args))


def parameter(chance: random.Random, mark: str) -> bytes:
    """A parameter calls `detach` of its data."""
    thing = having(chance, "detach", code(chance, mark))
    function, more = chance.choice(
        [
            (name("torch.nn.parameter", "Parameter"), [b"\x88"]),
            (name("torch._utils", "_rebuild_parameter"), [b"\x88", b"N"]),
            (name("torch._utils", "_rebuild_parameter_with_state"), [b"\x88", b"N", b"}"]),
        ]
    )
    return kept(chance, called(chance, function, thing, *more))


def array(chance: random.Random, mark: str) -> bytes:
    """NumPy calls `__array__` of what it converts, even where it is an attribute of the object alone."""
    thing = having(chance, "__array__", code(chance, mark))
    kind = chance.choice(["float64", "float32", "int64", "int32", "complex128", "bool"])
    return kept(chance, called(chance, name("numpy", kind), thing))


def base(chance: random.Random, mark: str) -> bytes:
    """`copyreg._reconstructor` calls `__init__` of the base that it is handed."""
    writer = name("torch._C", "PyTorchFileWriter")
    return kept(chance, called(chance, name("copyreg", "_reconstructor"), writer, writer, text(mark)))


def constructor(chance: random.Random, mark: str) -> bytes:
    """A class that is called with arguments: its constructor writes a file."""
    writer = name("torch._C", "PyTorchFileWriter")
    evil = chance.choice(
        [
            called(chance, writer, text(mark)),
            call(
                name("torch._tensor", "_rebuild_from_type_v2"), writer, writer, b"(" + text(mark) + b"t", b"}"
            ),
            b"(" + text(mark) + b"itorch._C\nPyTorchFileWriter\n",
        ]
    )
    return kept(chance, evil)


def enumeration(chance: random.Random, mark: str) -> bytes:
    """`Enum` called with a name and members makes a class with any methods, and its members."""
    kind = name("enum", chance.choice(["Enum", "Flag"]))
    special = b"(" + text("__init__") + method(chance, mark) + b"t"
    members = b"](" + special + b"(" + text("a") + b"M\xb6\x01te"
    return kept(chance, called(chance, kind, text("Kind"), members))


def rebuilt(chance: random.Random, mark: str) -> bytes:
    """`_rebuild_from_type_v2` calls `as_subclass` of what its function gives."""
    thing = having(chance, "as_subclass", LOADER)
    function = name("torch._tensor", "_rebuild_from_type_v2")
    first = name("torch.jit._pickle", "restore_type_tag")
    return kept(chance, called(chance, function, first, pickled(chance, mark), b"(" + thing + b"Nt", b"}"))


def second(chance: random.Random, mark: str) -> bytes:
    """What a second pickle gives is looked up in by the first."""
    inner = in_zip(whole(having(chance, "keys", method(chance, mark))))
    return kept(chance, called(chance, name("builtins", "dict"), call(LOADER, data(inner))))


def made(kind: str, chance: random.Random) -> bytes:
    """An object of a class of somebody's, made without its constructor."""
    cls = name("gadgets", kind)
    ways = [cls + b")\x81", cls + b")}\x92", call(name("copyreg", "__newobj__"), cls)]
    if kind not in ("Stored", "Noted"):
        ways.append(call(name("copyreg", "_reconstructor"), cls, name("builtins", "object"), b"N"))
    return chance.choice(ways)


def state(chance: random.Random, mark: str) -> bytes:
    return b"}" + text("make") + code(chance, mark) + b"s"


def hashed(chance: random.Random, mark: str) -> bytes:
    """An object of somebody's as a key of a dict, or in a set."""
    proxy = made("Proxy", chance) + state(chance, mark) + b"b"
    ways = [
        b"}" + proxy + b"K\x01s",
        b"}(" + proxy + b"K\x01u",
        b"\x8f(" + proxy + b"\x90",
        b"(" + proxy + b"\x91",
        b"}" + proxy + b"\x85K\x01s",
        *(call(name(*kind.split()), b"]" + proxy + b"a") for kind in ("builtins set", "collections Counter")),
    ]
    return kept(chance, chance.choice(ways))


def compared(chance: random.Random, mark: str) -> bytes:
    """A key that is given its attributes after it has been put into the dict."""
    first = b"}q\x64" + made("Equal", chance) + b"q\x63K\x01s0h\x63"
    return kept(chance, first + state(chance, mark) + b"b0h\x64" + made("Equal", chance) + b"K\x02s")


def converted(chance: random.Random, mark: str) -> bytes:
    """An object of somebody's that a known function converts."""
    kinds = "builtins.str builtins.list builtins.tuple builtins.bytes builtins.complex pathlib.PosixPath torch.Size"
    function = chance.choice(f"{kinds} collections.deque numpy.float64 builtins.zip builtins.iter".split())
    proxy = made("Proxy", chance) + state(chance, mark) + b"b"
    return kept(chance, called(chance, name(*function.rsplit(".", 1)), proxy))


def filled(chance: random.Random, mark: str) -> bytes:
    """A dict or list of somebody's that is filled after it has its attributes."""
    kind, more = chance.choice([("Stored", b"K\x01K\x02s"), ("Noted", b"K\x01a")])
    return kept(chance, made(kind, chance) + state(chance, mark) + b"b" + more)


def twice(chance: random.Random, mark: str) -> bytes:
    """An object that is given its attributes twice."""
    return kept(chance, made("Replaced", chance) + state(chance, mark) + b"b}b")


def started(chance: random.Random, mark: str) -> bytes:
    """An object that calls what its state holds, with what loads a pickle in it."""
    loader = partial(chance, LOADER, pickled(chance, mark))
    return kept(chance, made("Started", chance) + b"}" + text("make") + loader + b"sb")


def foreign(chance: random.Random, mark: str) -> bytes:
    """A function or class of somebody's called with arguments, in every way there is."""
    opened, function = name("gadgets", "Opened"), chance.choice(["Writer", "write"])
    return kept(
        chance,
        chance.choice(
            [
                called(chance, name("gadgets", function), text(mark)),
                b"(" + text(mark) + f"igadgets\n{function}\n".encode(),
                opened + b"(" + text(mark) + b"t\x81",
                opened + b"(" + text(mark) + b"t}\x92",
                call(name("copyreg", "__newobj__"), opened, text(mark)),
                call(name("copyreg", "__newobj_ex__"), opened, b"(" + text(mark) + b"t", b"}"),
            ]
        ),
    )


KINDS: dict[str, Kind] = {
    "generator": generator,
    "mapping": mapping,
    "parameter": parameter,
    "array": array,
    "base": base,
    "constructor": constructor,
    "enumeration": enumeration,
    "rebuilt": rebuilt,
    "second": second,
    "hashed": hashed,
    "compared": compared,
    "converted": converted,
    "filled": filled,
    "twice": twice,
    "started": started,
    "foreign": foreign,
}
