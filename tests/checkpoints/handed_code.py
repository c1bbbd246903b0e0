"""Pickles that run code through names that honest checkpoints use, which call or look up what they are handed.

Each kind is a function of a random generator and a mark, the file that its code leaves behind. No name in them is
dangerous by itself.
"""

import random
from collections.abc import Callable

from hostile import call, data, name, text, whole

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


KINDS: dict[str, Kind] = {
    "generator": generator,
    "mapping": mapping,
    "parameter": parameter,
    "array": array,
    "base": base,
    "constructor": constructor,
    "enumeration": enumeration,
    "rebuilt": rebuilt,
}
