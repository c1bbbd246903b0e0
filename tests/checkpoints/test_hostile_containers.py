"""What runs code in other containers is never known: NumPy, tar, joblib, Keras, torch.export, GGUF."""

import contextlib
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import hostile
import joblib
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from modelscope_cli.checkpoints import safetensors_header
from modelscope_cli.checkpoints.reading import read_contents
from modelscope_cli.checkpoints.safety import scan as scanning
from modelscope_cli.checkpoints.safety.scan import scan_checkpoint, scan_file
from modelscope_cli.records.weights import DANGEROUS, KNOWN, UNKNOWN

pytestmark = pytest.mark.filterwarnings("ignore")

SPELLINGS = (
    *(
        "'object'",
        "'object_'",
        "'|O'",
        "'O8'",
        "'<O'",
        "'\\x4f'",
        "'obj' 'ect'",
        "'i4,O'",
        "'2O'",
        "'(2,)O'",
        "['aO']",
    ),
    *(
        "[('a','O')]",
        "[('a',[('b','object')])]",
        "[('a','O',(2,))]",
        "[('a',('|O',(2,)))]",
        "[(('t','n'),'O')]",
    ),
    *("('|O',())", "[('a','<f4'),('b','i4,O')]"),
)
MEMBER = "joblib.numpy_pickle\nNumpyArrayWrapper\n"


def evil(mark: Path) -> bytes:
    return hostile.KINDS["reduce"](str(mark))


def npy(descr: str, values: bytes, version: int = 1, before: str = "") -> bytes:
    header = f"{before}{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}\n".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + values


def zipped(entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as target:
        for name, data in entries.items():
            target.writestr(name, data)
    return packed.getvalue()


def plain_array() -> bytes:
    packed = io.BytesIO()
    np.save(packed, np.ones(3))
    return packed.getvalue()


def load_npz(path: Path) -> None:
    with np.load(path, allow_pickle=True) as file:
        for name in file.files:
            _ = file[name]


def ran(mark: Path, load) -> bool:
    with contextlib.suppress(Exception):
        load()
    return mark.exists()


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_objects_of_numpy_however_they_are_spelled(tmp_path, spelling):
    mark, path = tmp_path / "mark", tmp_path / "a.npy"
    for version, before in ((1, ""), (2, " " * 70_000), (3, "")):
        path.write_bytes(npy(spelling, evil(mark), version, before))
        assert ran(mark, lambda: np.load(path, allow_pickle=True))
        mark.unlink()
        assert scan_file(path).rank == DANGEROUS


@pytest.mark.parametrize("trick", ["", "of torch", "count", "prefix", "end record in a comment", "deflated"])
def test_entries_that_only_some_readers_find(tmp_path, trick):
    mark, path = tmp_path / "mark", tmp_path / "a.npz"
    name = "x/data/7" if trick == "of torch" else "w.npy"
    method = zipfile.ZIP_DEFLATED if trick == "deflated" else zipfile.ZIP_STORED
    data = bytearray(zipped({"p.npy": plain_array(), name: npy("'object_'", evil(mark))}, method))
    if trick == "count":
        end = data.rfind(b"PK\5\6")
        data[end + 8 : end + 12] = struct.pack("<HH", 1, 1)
    elif trick:
        first = bytearray(zipped({"p.npy": plain_array()}))
        if trick == "end record in a comment":
            first[-2:] = struct.pack("<H", len(data))
        data = data if trick in ("of torch", "deflated") else first + data
    path.write_bytes(data)
    assert ran(mark, lambda: load_npz(path))
    assert scan_file(path).rank == DANGEROUS


def tar(members: list[tuple[str, bytes, dict]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:", format=tarfile.PAX_FORMAT) as target:
        for name, data, fields in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for field, value in fields.items():
                setattr(info, field, value)
            target.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def storages(behind: bytes) -> bytes:
    one = pickle.dumps(("k", "cpu", torch.FloatStorage), 2) + struct.pack("<q", 4) + bytes(16)
    return pickle.dumps(1, 2) + one + behind


@pytest.mark.parametrize("trick", ["sparse", "behind values", "link", "twice", "renamed"])
def test_tar_archives_as_torch_reads_them(tmp_path, trick):
    mark, path = tmp_path / "mark", tmp_path / "a.pt"
    none, code = pickle.dumps(0, 2), evil(mark)
    others = [("tensors", none, {}), ("pickle", pickle.dumps({}, 2), {})]
    sparse = {
        "GNU.sparse.map": f"0,{len(code)}",
        "GNU.sparse.size": str(len(code)),
        "GNU.sparse.numblocks": "1",
    }
    path.write_bytes(
        tar(
            {
                "sparse": [("storages", code, {"pax_headers": sparse})],
                "behind values": [("storages", storages(hostile.KINDS["protocol 0"](str(mark))), {})],
                "link": [("x", code, {}), ("storages", b"", {"type": tarfile.LNKTYPE, "linkname": "x"})],
                "twice": [("storages", none, {}), ("storages", code, {})],
                "renamed": [("readme", code, {"pax_headers": {"path": "storages"}})],
            }[trick]
            + others
        )
    )
    assert ran(mark, lambda: torch.load(path, weights_only=False))
    safety = scan_file(path)
    assert safety.rank == DANGEROUS
    assert safety.errors or trick != "sparse"


def test_an_honest_tar_of_torch_is_followed_to_its_end(tmp_path):
    tensors = (
        pickle.dumps(1, 2)
        + pickle.dumps(("t", "k", torch.FloatTensor), 2)
        + struct.pack("<iiqqq", 1, 0, 4, 1, 0)
    )
    path = tmp_path / "a.pt"
    path.write_bytes(
        tar(
            [
                ("storages", storages(pickle.dumps([], 2)), {}),
                ("tensors", tensors, {}),
                ("pickle", pickle.dumps({}, 2), {}),
            ]
        )
    )
    assert torch.load(path, weights_only=False) == {}
    assert (scan_file(path).rank, scan_file(path).errors) == (KNOWN, ())


def test_links_out_of_a_tar_are_unknown(tmp_path):
    for target, rank in (
        ("cat.png", KNOWN),
        ("/etc/hostname", UNKNOWN),
        ("../x", UNKNOWN),
        ("missing", UNKNOWN),
    ):
        link = ("link", b"", {"type": tarfile.SYMTYPE, "linkname": target})
        (tmp_path / "a.tar").write_bytes(tar([("cat.png", b"\x89PNG\r\n\x1a\n", {}), link]))
        assert scan_file(tmp_path / "a.tar").rank == rank


def array_of_joblib(code: str, state: bytes, n: int, values: bytes, make: bytes | None = None) -> bytes:
    dtype = b"cnumpy\ndtype\n" + hostile.short(code) + b"\x89\x88\x87R" + state + b"b"
    items = {
        "subclass": b"cnumpy\nndarray\n",
        "shape": b"M" + struct.pack("<H", n) + b"\x85",
        "order": hostile.short("C"),
    }
    items |= {"dtype": dtype, "allow_mmap": b"\x89", "numpy_array_alignment_bytes": b"N"}
    body = b"".join(hostile.short(key) + value for key, value in items.items())
    made = make or b"c" + MEMBER.encode() + b")\x81"
    return b"\x80\x04" + made + b"}(" + body + b"ub" + values + b"."


def state(code: str, nbytes: int = -1, flags: int = 0) -> bytes:
    return pickle.dumps((3, "|" if code in "uV" else "<", None, None, None, nbytes, nbytes, flags), 0)[:-1]


@pytest.mark.parametrize("kind", ["flags", "size", "made otherwise", "for pickle"])
def test_arrays_of_joblib_that_are_not_what_they_say(tmp_path, kind):
    mark, path = tmp_path / "mark", tmp_path / "a.pkl"
    code = evil(mark)
    inner = b"0" + code[2:]
    path.write_bytes(
        {
            "flags": lambda: array_of_joblib("u1", state("u", flags=1), len(code), code),
            "size": lambda: array_of_joblib(f"V{len(inner) + 1}", state("V", 1), 1, b"x" + inner),
            "made otherwise": lambda: array_of_joblib(
                "u1",
                state("u"),
                5,
                b"B" + struct.pack("<I", len(inner)) + inner + b"0",
                b"ccopyreg\n__newobj__\nc" + MEMBER.encode() + b"\x85R",
            ),
            "for pickle": lambda: array_of_joblib("u1", state("u"), len(inner), inner),
        }[kind]()
    )
    load = pickle.loads if kind == "for pickle" else lambda data: joblib.load(io.BytesIO(data))
    assert ran(mark, lambda: load(path.read_bytes()))
    assert scan_file(path).rank == DANGEROUS


@pytest.mark.parametrize("place", ["./__0_0.distcp", "sub/a.bin", "notes.txt", "../a.bin"])
def test_objects_of_a_distributed_checkpoint_wherever_they_are(tmp_path, place):
    folder, mark = tmp_path / "a", tmp_path / "mark"
    dcp.save({"w": torch.ones(2), "epoch": Evil(mark)}, checkpoint_id=folder, no_dist=True)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = place
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    target = folder / place
    target.parent.mkdir(exist_ok=True)
    (folder / "__0_0.distcp").rename(target)
    assert scan_checkpoint(folder).rank == (UNKNOWN if "/a" in place else DANGEROUS)


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch '{self.mark}'",)


def keras(module: str | None, name: str, config: object, registered: str | None = None) -> dict:
    return {"module": module, "class_name": name, "config": config, "registered_name": registered}


RELU = keras("builtins", "function", "relu", "function")
DENSE = keras(
    "keras.layers", "Dense", {"units": 3, "activation": RELU, "dtype": keras("keras", "DTypePolicy", {})}
)


@pytest.mark.parametrize(("thing", "rank"), [
    (DENSE, KNOWN),
    ({"class_name": "Conv2D", "config": {}}, KNOWN),
    (keras("os", "system", "x"), DANGEROUS),
    (keras("builtins", "function", "eval", "function"), DANGEROUS),
    (keras("keras.layers", "Lambda", {"function": {"class_name": "__lambda__", "config": {}}}), DANGEROUS),
    ({"class_name": "Lambda", "config": {"function": ["4wEA", None, None]}}, DANGEROUS),
    (keras("keras.layers", "Lambda", {"function": keras("m", "function", "f")}), UNKNOWN),
    (keras("keras.utils", "get_file", {}), UNKNOWN),
    (keras("keras.layers", "TorchModuleWrapper", {"module": "gAR="}), UNKNOWN),
    (keras("mine", "Layer", {}), UNKNOWN),
    (keras(None, "Layer", {}, "mine>Layer"), UNKNOWN),
])  # fmt: skip
def test_configurations_of_keras(tmp_path, thing, rank):
    document = json.dumps(keras("keras", "Sequential", {"layers": [DENSE, {"deep": [thing]}]}))
    for name, data in (
        ("config.json", document.encode()),
        ("a.json", b" " * 600 + document.replace("class_name", "class\\u005fname").encode()),
        ("a.keras", zipped({"metadata.json": b"{}", "config.json": document.encode()}, zipfile.ZIP_DEFLATED)),
        ("b.keras", b"\x89PNG\r\n\x1a\n" + zipped({"config.json": document.encode()})),
    ):
        (tmp_path / name).write_bytes(data)
        expected = UNKNOWN if (rank, name) == (KNOWN, "b.keras") else rank
        assert scan_file(tmp_path / name).rank in (rank, expected), name


def exported(folder: Path) -> Path:
    dim = torch.export.Dim("n", min=4, max=64)
    program = torch.export.export(Halved(), (torch.ones(8, 3),), dynamic_shapes=({0: dim},))
    torch.export.save(program, folder / "a.pt2")
    return folder / "a.pt2"


class Halved(torch.nn.Module):
    def forward(self, x):
        return torch.cat([x, x[: x.shape[0] - 2]])


def test_expressions_of_torch_export(tmp_path):
    path, mark = exported(tmp_path), tmp_path / "mark"
    assert scan_file(path).rank == KNOWN
    with zipfile.ZipFile(path) as source:
        entries = {name: source.read(name) for name in source.namelist()}
    model = next(name for name in entries if name.endswith("models/model.json"))
    evil = json.dumps(f"open('{mark}','w')").encode()
    whole = json.loads(entries[model])
    for text in set(_expressions(whole)):
        entries[model] = entries[model].replace(json.dumps(text).encode(), evil)
    path.write_bytes(zipped(entries))
    assert ran(mark, lambda: torch.export.load(path))
    assert scan_file(path).rank == DANGEROUS


def _expressions(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["expr_str"]] if isinstance(value.get("expr_str"), str) else []
        return own + [text for item in value.values() for text in _expressions(item)]
    return [text for item in value for text in _expressions(item)] if isinstance(value, list) else []


@pytest.mark.parametrize(("template", "rank"), [
    ("{% for m in messages %}{{ m['role'] }}{% endfor %}", KNOWN),
    ("{{ ''.__class__.__mro__ }}", DANGEROUS),
])  # fmt: skip
def test_templates_of_gguf(tmp_path, template, rank):
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    tokens = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 1) + text("__class__")
    values = text("x") + struct.pack("<IIQ", 9, 6, 1000) + bytes(4000)
    chat = text("tokenizer.chat_template") + struct.pack("<I", 8) + text(template)
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 3) + tokens + values + chat
    (tmp_path / "a.gguf").write_bytes(data)
    assert scan_file(tmp_path / "a.gguf").rank == rank
    (tmp_path / "a.gguf").write_bytes(data[:60])
    assert scan_file(tmp_path / "a.gguf").rank == UNKNOWN


@pytest.mark.parametrize(("name", "data"), [
    ("a.py", b"x = 1"),
    ("lib.so", b"\x7fELF"),
    ("x", b"\x7fELF"),
    ("m.onnx", b"\x08\x07\x12\x04test"),
    ("x", b"\x00\x01"),
])  # fmt: skip
def test_programs_and_what_is_not_read_inside_archives(tmp_path, name, data):
    (tmp_path / "a.zip").write_bytes(zipped({"readme.txt": b"x", name: data}))
    assert scan_file(tmp_path / "a.zip").rank == UNKNOWN


def test_shards_that_an_index_names_elsewhere(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.bin").write_bytes(hostile.in_zip(evil(tmp_path / "mark")))
    index = tmp_path / "model.bin.index.json"
    for name, rank in (("sub/a.bin", DANGEROUS), ("../a.bin", UNKNOWN), ("missing.bin", UNKNOWN)):
        index.write_text(json.dumps({"weight_map": {"w": name}}))
        assert scan_checkpoint(index).rank == rank
    index.write_text("{")
    assert scan_checkpoint(index).rank == UNKNOWN


DTYPES = ("?", "i1", "u2", "u8", "f2", ">f4", "g", "c16", "S5", "U7", "V6", "M8[25s]", "m8[ns]")
FIELDS = (
    [("a", "f4"), ("b", "u2")],
    [("a", "f4", (2, 3)), ("b", [("c", "U3"), ("d", "M8[s]")])],
    [(("title", "n"), "<f8")],
    np.dtype([("a", "i1"), ("naïve", "f8")], align=True),
    [(f"field {n}", "f8") for n in range(3000)],
)


@pytest.mark.parametrize("dtype", [*DTYPES, *FIELDS], ids=str)
def test_arrays_as_numpy_and_joblib_write_them_are_known(tmp_path, dtype):
    array = np.zeros((2, 3), dtype)
    np.save(tmp_path / "a.npy", array)
    np.savez_compressed(tmp_path / "a.npz", array, array)
    joblib.dump([array, np.array(["a", None], dtype=object), array], tmp_path / "a.joblib")
    for name in ("a.npy", "a.npz", "a.joblib"):
        safety = scan_file(tmp_path / name)
        assert (safety.rank, safety.errors) == (KNOWN, ()), name


def test_headers_of_python_2_and_of_no_version(tmp_path):
    path = tmp_path / "a.npy"
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3L,), }\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(12))
    assert np.load(path).shape == (3,)
    assert scan_file(path).rank == KNOWN
    path.write_bytes(b"\x93NUMPY\x07\x00" + path.read_bytes()[8:])
    assert scan_file(path).rank == UNKNOWN


def test_no_more_is_unpacked_than_there_is_room_for(tmp_path, monkeypatch):
    monkeypatch.setattr(scanning, "MAX_ALL_UNPACKED", 1 << 20)
    (tmp_path / "a.zip").write_bytes(
        zipped({f"{n}.txt": b" " * (1 << 20) for n in range(40)}, zipfile.ZIP_DEFLATED)
    )
    safety = scan_file(tmp_path / "a.zip")
    assert safety.rank == UNKNOWN
    assert len(safety.errors) == 1


def test_usual_headers_of_safetensors_are_not_parsed_one_by_one(tmp_path, monkeypatch):
    header = {f"l{n}": {"dtype": "U8", "shape": [1], "data_offsets": [n, n + 1]} for n in range(2000)}
    calls = []
    loads = json.loads
    monkeypatch.setattr(
        safetensors_header.json, "loads", lambda *a, **k: (calls.append(a), loads(*a, **k))[1]
    )
    for separators in ((",", ":"), (", ", ": ")):
        raw = json.dumps(
            {'é"x': header.pop("l0", None) or {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}} | header,
            separators=separators,
        ).encode()
        (tmp_path / "a.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(2000))
        assert len(read_contents(tmp_path / "a.safetensors").tensors) == 2000
    assert len(calls) <= 8
