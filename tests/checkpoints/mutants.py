"""Damage checkpoints in every way there is and read them: a process of its own, without torch.

Arguments: a folder with `whole.safetensors`, `whole.pt` and `payload.pkl`, and how many mutants of each. Prints
what happened as JSON.
"""

import io
import json
import random
import re
import resource
import struct
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from modelscope_cli.checkpoints.identify import identify
from modelscope_cli.checkpoints.reading import read_contents
from modelscope_cli.checkpoints.safety.scan import scan_file
from modelscope_cli.errors import ModelscopeError

N_HUGE = 30_000  # far more than frames on the stack of Python
N_SCANNED = 40  # the first of each kind, and every fourth
HUGE = (0, 1, 7, 255, 2**31 - 1, 2**32 - 1, 2**53, 2**63 - 1, 2**64 - 1)


def flipped(data: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(1, len(data))]


def spliced(data: bytes, chance: random.Random) -> bytes:
    begin, end, at = (chance.randrange(len(data)) for _ in range(3))
    return data[:at] + data[begin : begin + abs(end - begin) % 200] + data[at:]


def lying_number(data: bytes, chance: random.Random) -> bytes:
    width = chance.choice((2, 4, 8))
    at = chance.randrange(max(1, len(data) - width))
    value = chance.choice(HUGE) % 256**width
    return data[:at] + value.to_bytes(width, "little") + data[at + width :]


def lying_header(data: bytes, chance: random.Random) -> bytes:
    """Change a number in the JSON: shapes, offsets that overlap, huge lengths."""
    n = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + n].decode()
    places = list(re.finditer(r"\d+", text))
    for place in sorted(chance.sample(places, chance.choice((1, 2, 5))), key=lambda m: -m.start()):
        value = str(chance.choice((*HUGE, -1, 2**200, 10, 24)))
        text = text[: place.start()] + value + text[place.end() :]
    return len(text).to_bytes(8, "little") + text.encode() + data[8 + n :]


def odd_header(data: bytes, chance: random.Random) -> bytes:
    text = chance.choice(
        (
            *(
                "[" * 100_000,
                '{"a":' * 50_000,
                "{}",
                '{"a":1}',
                '{"__metadata__":[]}',
                '{"__metadata__":{"a":1}}',
            ),
            '{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0]}}',
            '{"a":{"dtype":["F32"],"shape":{"b":1},"data_offsets":"01"}}',
            '{"a":{"dtype":"F32","shape":[' + "1," * 7_000 + '1],"data_offsets":[0,4]}}',
            '{"\\ud800\\u001b[2J":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}',
            "{" + ",".join(f'"{n}":[]' for n in range(5_000)) + "}",
        )
    )
    return len(text).to_bytes(8, "little") + text.encode() + chance.choice((b"", data[-64:]))


def repacked(data: bytes, pickle: bytes, **options: int) -> bytes:
    """Return the archive with another `data.pkl`."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(packed, "w") as new:
        for name in old.namelist():
            is_pickle = name.endswith("data.pkl")
            new.writestr(
                zipfile.ZipInfo(name),
                pickle if is_pickle else old.read(name),
                **(options if is_pickle else {}),
            )
    return packed.getvalue()


def damaged_pickle(data: bytes, chance: random.Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        inside = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    change = chance.choice((flipped, flipped, cut, spliced, lying_number))
    return repacked(data, change(inside, chance))


def hostile_pickles(payload: bytes) -> Iterator[bytes]:
    """Payloads, nested and not, and pickles that ask for too much time or memory."""
    yield payload
    yield b"\x80\x04(" + payload[2:-1] * 50 + b"t."
    yield b"\x80\x04B" + struct.pack("<I", len(payload)) + payload + b"."
    yield b"\x80\x02)" + b"\x85" * N_HUGE + b"."
    yield b"\x80\x02})" + b"\x85" * N_HUGE + b"Ns."
    yield b"\x80\x02" + b"]" * N_HUGE + b"a" * (N_HUGE - 1) + b"."
    doubled = (b"]q%c(h%ch%ce" % (n, n - 1, n - 1) for n in range(1, 250))
    yield b"\x80\x02]q\x00" + b"".join(doubled) + b"."
    yield b"\x80\x02]q\x00h\x00a}X\x01\x00\x00\x00ah\x00s."
    yield b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"abc."
    yield b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"abc."
    yield b"\x80\x02Nr\xff\xff\xff\xff."
    yield b"\x80\x02\x8b\xff\xff\xff\x7f\x01."
    yield b"L" + b"9" * 100_000 + b"L\n."
    yield b"(" * N_HUGE + b"t" * N_HUGE + b"."
    yield b"\x80\x02" + b"N" * 700_000 + b"."
    inner = b"}q\x01(" + b"".join(b"X\x06\x00\x00\x00%06dN" % n for n in range(50_000)) + b"u0"
    yield (
        b"\x80\x02"
        + inner
        + b"}("
        + b"".join(b"X\x06\x00\x00\x00%06dh\x01" % n for n in range(50_000))
        + b"u."
    )


def mutants_of_zip(data: bytes, payload: bytes, n: int, chance: random.Random) -> Iterator[bytes]:
    for pickle in hostile_pickles(payload):
        yield repacked(data, pickle)
        if len(pickle) < N_HUGE:
            yield pickle  # and without an archive
    yield repacked(data, b"\x80\x02" + b"N0" * (20 << 20) + b"N.", compress_type=zipfile.ZIP_DEFLATED)
    for number in range(n):
        yield (flipped, cut, spliced, lying_number, damaged_pickle, damaged_pickle)[number % 6](data, chance)


def mutants_of_safetensors(data: bytes, n: int, chance: random.Random) -> Iterator[bytes]:
    for number in range(n):
        yield (flipped, cut, spliced, lying_number, lying_header, lying_header, odd_header)[number % 7](
            data, chance
        )


def main(folder: Path, n: int) -> None:
    chance = random.Random(0)
    payload = (folder / "payload.pkl").read_bytes()
    kinds = {
        "safetensors": mutants_of_safetensors((folder / "whole.safetensors").read_bytes(), n, chance),
        "zip": mutants_of_zip((folder / "whole.pt").read_bytes(), payload, n, chance),
    }
    path = folder / "mutant"
    outcomes: Counter[str] = Counter()
    crashes, slowest = [], 0.0
    for kind, mutants in kinds.items():
        for number, mutant in enumerate(mutants):
            path.write_bytes(mutant)
            del mutant
            begin = time.process_time()
            try:
                identify(read_contents(path).shapes())
                outcomes[f"{kind} read"] += 1
            except ModelscopeError as error:
                outcomes[f"{kind} refused"] += 1
                if not error.message.isprintable() or len(error.message) > 1000:
                    crashes.append(f"{kind}: {error.message!r}")
            except BaseException as error:
                crashes.append(f"{kind}: {type(error).__name__}: {error}"[:300])
            slowest = max(slowest, time.process_time() - begin)
            if number > N_SCANNED and number % 4:
                continue
            begin = time.process_time()
            try:
                outcomes[f"{kind} scanned"] += bool(scan_file(path))
            except BaseException as error:
                crashes.append(f"{kind} scanned: {type(error).__name__}: {error}"[:300])
            slowest = max(slowest, time.process_time() - begin)
    report = {"outcomes": outcomes, "crashes": crashes, "slowest": slowest, "peak": peak_bytes()}
    sys.stdout.write(json.dumps(report))


def peak_bytes() -> int:
    """Return the peak memory; where the system tells, without that of the process this one was forked from."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
