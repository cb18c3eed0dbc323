"""How a CPU LibTorch is made of the wheels on PyPI, or of a torch that is installed.

The wheel on PyPI is a CUDA build. For the CPU, the gigabytes of CUDA libraries are not needed: `libtorch_cpu.so` asks only
for two small ones, CUPTI and the CUDA runtime. The wheel's own `libtorch.so` asks for `libtorch_cuda.so`, so a linker
script takes its place.
"""

import os
import re
import shutil
import zipfile
from pathlib import Path

from . import VERSION

LINKER_SCRIPT = "INPUT(libtorch_cpu.so libc10.so)\n"
# libtorch_cpu.so asks for these in a CUDA build.
CUDA_RUNTIME = ("libcupti.so.13", "libcudart.so.13")
CUDA_REQUIREMENTS = ("nvidia-cuda-cupti==13.0.*", "nvidia-cuda-runtime==13.0.*")
# Libraries of the wheel that need CUDA or Python, and the one that the linker script replaces.
_NOT_FOR_CPU = re.compile(r"(cuda|nvrtc|nvshmem|python|shm|global_deps|^libtorch\.so)")


def is_cuda_build(names):
    """Whether a list of file names is that of a CUDA build."""
    return any(Path(name).name == "libtorch_cuda.so" for name in names)


def needed_library(name):
    """Whether the CPU build needs this library (a bare file name) of a CUDA wheel's `torch/lib`."""
    return ".so" in name and not _NOT_FOR_CPU.search(name)


def unpack(wheel, root, on_bytes):
    """Unpacks what the CPU needs of a torch wheel into `root`; whether it was a CUDA build. CRCs are checked."""
    with zipfile.ZipFile(wheel) as archive:
        cuda = is_cuda_build(archive.namelist())
        for entry in archive.infolist():
            target = _target(entry.filename, cuda)
            if target and not entry.is_dir():
                _extract(archive, entry, root / target, on_bytes)
    return cuda


def unpack_cuda_runtime(wheel, root, on_bytes):
    """Unpacks the CUDA libraries that the CPU build asks for, as far as they are in this wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            name = entry.filename.rsplit("/", 1)[-1]
            if name in CUDA_RUNTIME:
                _extract(archive, entry, root / "lib" / name, on_bytes)


def unpack_archive(archive_path, root, on_bytes):
    """Unpacks the official archive, whose files all lie under `libtorch/`."""
    with zipfile.ZipFile(archive_path) as archive:
        for entry in archive.infolist():
            top, _, name = entry.filename.partition("/")
            if top == "libtorch" and name and not entry.is_dir():
                _extract(archive, entry, root / name, on_bytes)


def complete(root, cuda):
    """Writes what no wheel holds: the version, and for a CUDA build the linker script."""
    (root / "build-version").write_text(VERSION + "\n")
    if cuda:
        (root / "lib" / "libtorch.so").write_text(LINKER_SCRIPT)


def link_installed(package, root):
    """Makes a LibTorch of links into an installed torch package; returns the CUDA libraries that were not found."""
    os.symlink(package / "include", root / "include")
    names = sorted(path.name for path in (package / "lib").iterdir())
    cuda = is_cuda_build(names)
    missing = []
    if cuda:
        (root / "lib").mkdir()
        for name in filter(needed_library, names):
            os.symlink(package / "lib" / name, root / "lib" / name)
        missing = _link_cuda_runtime(package.parent, root / "lib")
    else:
        os.symlink(package / "lib", root / "lib")
    complete(root, cuda)
    return missing


def _link_cuda_runtime(site_packages, lib):
    missing = []
    for name in CUDA_RUNTIME:
        found = sorted(site_packages.glob(f"nvidia/*/lib/{name}"))
        if found:
            os.symlink(found[0], lib / name)
        else:
            missing.append(name)
    return missing


def _target(name, cuda):
    if name.startswith("torch/include/"):
        return name.removeprefix("torch/")
    if name.startswith("torch/lib/") and name.count("/") == 2:
        library = name.rsplit("/", 1)[-1]
        if needed_library(library) or (not cuda and ".so" in library):
            return f"lib/{library}"
    # CPU wheels keep what they bundle (OpenMP) here, under a name that libtorch_cpu.so knows.
    if not cuda and name.startswith("torch.libs/"):
        return f"lib/{name.rsplit('/', 1)[-1]}"
    return None


def _extract(archive, entry, target, on_bytes):
    # A name in an archive is data: it may not lead out of the folder.
    if ".." in target.parts:
        raise zipfile.BadZipFile(f"an entry leads out of the archive: {entry.filename}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as source, open(target, "wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
    on_bytes(entry.file_size)
