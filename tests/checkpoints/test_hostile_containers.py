"""What runs code in other containers is never known; old tar files, joblib, Keras and GGUF are not judged."""

import bz2
import contextlib
import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import hostile
import numpy as np
import pytest
import torch

from modelscope_cli.checkpoints.safety import scan as scanning
from modelscope_cli.checkpoints.safety.containers import NOT_JUDGED
from modelscope_cli.checkpoints.safety.scan import scan_checkpoint, scan_file
from modelscope_cli.records.weights import DANGEROUS, KNOWN, UNKNOWN

pytestmark = pytest.mark.filterwarnings("ignore")

SPELLINGS = (
    *("'object'", "'|O'", "'O8'", "'\\x4f'", "'obj' 'ect'", "'i4,O'", "'(2,)O'"),
    *("[('a','O')]", "[('a',[('b','object')])]", "[(('t','n'),'O')]", "('|O',())"),
)


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


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zlib.compress])
def test_compressed_files_are_not_judged(tmp_path, pack):
    (tmp_path / "a.pt").write_bytes(pack(evil(tmp_path / "mark")))
    safety = scan_file(tmp_path / "a.pt")
    assert safety.rank == UNKNOWN
    assert any(NOT_JUDGED in error for error in safety.errors)


@pytest.mark.parametrize("changed", ["values", "description"])
def test_a_folder_of_torch_distributed_is_not_judged(tmp_path, changed):
    (tmp_path / ("a.distcp" if changed == "values" else ".metadata")).write_bytes(evil(tmp_path / "mark"))
    (tmp_path / (".metadata" if changed == "values" else "a.distcp")).write_bytes(pickle.dumps({}))
    safety = scan_checkpoint(tmp_path)
    assert safety.rank == DANGEROUS
    assert sum(NOT_JUDGED in error for error in safety.errors) == 2


def test_tar_archives_of_old_torch_are_not_judged(tmp_path):
    mark, path = tmp_path / "mark", tmp_path / "a.pt"
    none = pickle.dumps(0, 2)
    others = [("tensors", none, {}), ("pickle", pickle.dumps({}, 2), {})]
    path.write_bytes(tar([("storages", evil(mark), {}), *others]))
    assert ran(mark, lambda: torch.load(path, weights_only=False))
    safety = scan_file(path)
    assert safety.rank == UNKNOWN
    assert any(NOT_JUDGED in error for error in safety.errors)


def keras(module: str | None, name: str, config: object, registered: str | None = None) -> dict:
    return {"module": module, "class_name": name, "config": config, "registered_name": registered}


def test_configurations_of_keras_are_not_judged(tmp_path):
    layer = keras("keras.layers", "Lambda", {"function": {"class_name": "__lambda__", "config": {}}})
    document = json.dumps(keras("keras", "Sequential", {"layers": [{"deep": [layer]}]}))
    for name, data in (
        ("config.json", document.encode()),
        ("a.json", b" " * 600 + document.replace("class_name", "class\\u005fname").encode()),
        ("a.keras", zipped({"metadata.json": b"{}", "config.json": document.encode()}, zipfile.ZIP_DEFLATED)),
        ("b.keras", b"\x89PNG\r\n\x1a\n" + zipped({"config.json": document.encode()})),
        ("a.h5", b"\x89HDF\r\n\x1a\n" + document.encode()),
        ("c.zip", zipped({"model.weights.h5": b"\x89HDF\r\n\x1a\n" + bytes(90)})),
    ):
        (tmp_path / name).write_bytes(data)
        safety = scan_file(tmp_path / name)
        assert safety.rank == UNKNOWN, name
        assert any(NOT_JUDGED in error for error in safety.errors), name


def test_a_program_of_torch_export_is_read_beside_a_configuration_of_keras(tmp_path):
    document = [keras("keras", "Dense", {}), {"expr_str": "open('x','w')"}]
    for turned in (document, document[::-1]):
        (tmp_path / "a.pt2").write_bytes(zipped({"a/models/model.json": json.dumps(turned).encode()}))
        assert scan_file(tmp_path / "a.pt2").rank == DANGEROUS


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


@pytest.mark.parametrize("data", [
    b"GGUF" + struct.pack("<IQQ", 3, 0, 0), b"\x08\x08\x12\x07pytorch", b"\x00\x01"
])  # fmt: skip
def test_other_formats_are_not_judged(tmp_path, data):
    (tmp_path / "a").write_bytes(data)
    safety = scan_file(tmp_path / "a")
    assert safety.rank == UNKNOWN
    assert any(NOT_JUDGED in error for error in safety.errors)


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
def test_arrays_as_numpy_writes_them_are_known(tmp_path, dtype):
    array = np.zeros((2, 3), dtype)
    np.save(tmp_path / "a.npy", array)
    np.savez_compressed(tmp_path / "a.npz", array, array)
    for name in ("a.npy", "a.npz"):
        safety = scan_file(tmp_path / name)
        assert (safety.rank, safety.errors) == (KNOWN, ()), name


def test_no_more_is_unpacked_than_there_is_room_for(tmp_path, monkeypatch):
    monkeypatch.setattr(scanning, "MAX_ALL_UNPACKED", 1 << 20)
    (tmp_path / "a.zip").write_bytes(
        zipped({f"{n}.txt": b" " * (1 << 20) for n in range(40)}, zipfile.ZIP_DEFLATED)
    )
    safety = scan_file(tmp_path / "a.zip")
    assert safety.rank == UNKNOWN
    assert len(safety.errors) == 1
