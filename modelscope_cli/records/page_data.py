"""The data inside a page: complete documents for `read` and the page's script. Standard library only.

They are in one `<script type="application/json">`, escaped so that nothing can end the element. Short ones are
plain JSON; long ones are `{"gzip": TEXT}`, the same JSON compressed, in base64.
"""

import base64
import gzip
import json
import re
import zlib
from collections.abc import Sequence
from typing import Any

ELEMENT = "modelscope-data"
_ISLAND = re.compile(rb'<script type="application/json" id="modelscope-data">(.*?)</script>', re.DOTALL)
_SHORT = 60_000  # characters up to which a document is not compressed
_MOST_BYTES = 1 << 30  # when decompressed, against decompression bombs; no page holds more


class NotAPageError(ValueError):
    """Not a page of modelscope, or its data is damaged."""


def embed(documents: Sequence[dict[str, Any]]) -> str:
    """Return the element that holds documents, which are strict JSON: no NaN, no infinities."""
    data = json.dumps(list(documents), separators=(",", ":"), allow_nan=False)
    if len(data) > _SHORT:
        packed = gzip.compress(data.encode(), 9, mtime=0)
        data = json.dumps({"gzip": base64.b64encode(packed).decode()})
    for mark in "<>&":  # nothing in the data begins or ends an HTML element
        data = data.replace(mark, f"\\u{ord(mark):04x}")
    return f'<script type="application/json" id="{ELEMENT}">{data}</script>'


def is_page(page: bytes) -> bool:
    """Tell whether this is a page of modelscope, with or without a result."""
    return _ISLAND.search(page) is not None


def extract(page: bytes) -> list[dict[str, Any]]:
    """Return the documents in a page.

    Raises:
        NotAPageError: it has none, or they are damaged.
    """
    island = _ISLAND.search(page)
    if island is None:
        raise NotAPageError("it contains no modelscope data")
    try:
        data = json.loads(island[1])
        documents = data if isinstance(data, list) else json.loads(_decompressed(data["gzip"]))
    except (ValueError, LookupError, TypeError, zlib.error, RecursionError) as error:
        raise NotAPageError("its data is damaged") from error
    if (
        not isinstance(documents, list)
        or not documents
        or not all(isinstance(one, dict) for one in documents)
    ):
        raise NotAPageError("its data is damaged")
    return documents


def _decompressed(text: str) -> bytes:
    unzip = zlib.decompressobj(wbits=31)  # gzip
    data = unzip.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
    if unzip.unconsumed_tail or not unzip.eof:
        raise ValueError("cut off, or far too large")
    return data
