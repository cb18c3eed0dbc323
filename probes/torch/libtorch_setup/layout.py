"""What a LibTorch consists of, and whether the one in a folder is whole.

A finished folder holds `include/`, `lib/`, `build-version` and a manifest with size, time and SHA-256 of every file.
Sizes and times are compared on every start (thousands of files, some tens of milliseconds); a file whose time changed is
hashed again, so damage is seen without reading half a gigabyte each time.
"""

import hashlib
import json
import os
import re
import struct
from pathlib import Path

from . import VERSION

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
LIBRARIES = ("lib/libtorch_cpu.so", "lib/libc10.so")
LINKED = "lib/libtorch.so"
HEADER = "include/torch/csrc/api/include/torch/torch.h"
VERSION_HEADER = "include/torch/headeronly/version.h"


class Damaged(Exception):
    """The folder is not a whole LibTorch of the wanted version; the text says what is wrong with it."""


def check(root):
    """Raises `Damaged` unless `root` looks like a LibTorch of the wanted version with undamaged libraries."""
    check_parts(root, root)


def check_parts(include_root, lib_root):
    """The same for headers and libraries in two places, as LIBTORCH_INCLUDE and LIBTORCH_LIB allow."""
    include_root, lib_root = Path(include_root), Path(lib_root)
    for root, name in [(include_root, HEADER)] + [(lib_root, name) for name in LIBRARIES + (LINKED,)]:
        if not (root / name).is_file():
            raise Damaged(f"{name} is missing")
    found = version_of(include_root)
    if found != VERSION:
        raise Damaged(f"it is LibTorch {found or 'of unknown version'}, and {VERSION} is needed")
    for name in LIBRARIES:
        check_shared_object(lib_root / name)


def version_of(root):
    """The version of the LibTorch in `root` without its build suffix, or None where nothing tells it."""
    stamp = Path(root) / "build-version"
    if stamp.is_file():
        return stamp.read_text().strip().split("+")[0]
    header = Path(root) / VERSION_HEADER
    if not header.is_file():
        return None
    parts = dict(re.findall(r"#define TORCH_VERSION_(MAJOR|MINOR|PATCH) (\d+)", header.read_text()))
    numbers = [parts.get(part) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(numbers) if all(numbers) else None


def check_shared_object(path):
    """Raises `Damaged` when the file is no 64-bit ELF, or is shorter than its own section table says."""
    with open(path, "rb") as file:
        head = file.read(64)
    if len(head) < 64 or head[:5] != b"\x7fELF\x02":
        raise Damaged(f"{path.name} is not a 64-bit ELF library")
    (table,) = struct.unpack_from("<Q", head, 40)
    entry, count = struct.unpack_from("<HH", head, 58)
    if table + entry * count > path.stat().st_size:
        raise Damaged(f"{path.name} is cut short")


def write_manifest(root, source, on_bytes=lambda count: None):
    """Hashes every file under `root` and writes the manifest; `source` is a word for people."""
    root = Path(root)
    files = {}
    for path in _files(root):
        status = path.stat()
        digest = _sha256(path, on_bytes)
        files[path.relative_to(root).as_posix()] = [status.st_size, status.st_mtime_ns, digest]
    text = json.dumps({"format": MANIFEST_FORMAT, "version": VERSION, "source": source, "files": files})
    aside = root / (MANIFEST + ".new")
    aside.write_text(text + "\n")
    os.replace(aside, root / MANIFEST)


def verify(root, thorough=False):
    """The word for where `root` came from; raises `Damaged` when a file is missing or changed.

    `thorough` hashes every file, whatever its time says.
    """
    root = Path(root)
    manifest = _read_manifest(root)
    for name, (size, mtime_ns, digest) in manifest["files"].items():
        try:
            status = os.stat(root / name)
        except OSError:
            raise Damaged(f"{name} is missing") from None
        if status.st_size != size:
            raise Damaged(f"{name} has {status.st_size} bytes, not {size}")
        if (thorough or status.st_mtime_ns != mtime_ns) and _sha256(root / name) != digest:
            raise Damaged(f"{name} has changed")
    return manifest["source"]


def _read_manifest(root):
    try:
        manifest = json.loads((root / MANIFEST).read_text())
        complete = manifest["format"] == MANIFEST_FORMAT and manifest["files"] and manifest["source"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"its manifest cannot be read ({error})") from None
    if not complete:
        raise Damaged("its manifest is of another format")
    if manifest["version"] != VERSION:
        raise Damaged(f"it is LibTorch {manifest['version']}, and {VERSION} is needed")
    return manifest


def _files(root):
    # Links are followed: a LibTorch made from an installed torch consists of them.
    for folder, folders, names in os.walk(root, followlinks=True):
        folders.sort()
        for name in sorted(names):
            if name not in (MANIFEST, MANIFEST + ".new"):
                yield Path(folder) / name


def _sha256(path, on_bytes=lambda count: None):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            on_bytes(len(block))
    return digest.hexdigest()
