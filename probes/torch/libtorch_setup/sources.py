"""Where a LibTorch can be had, in the order in which the sources are tried.

A source fills an empty folder, or raises `Unavailable` with a reason that people can act on.
"""

import importlib.util
import os
import platform
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

from . import VERSION, wheels
from .progress import Progress

ARCHIVE_URL = f"https://download.pytorch.org/libtorch/cpu/libtorch-shared-with-deps-{VERSION}%2Bcpu.zip"
CONNECT_SECONDS = 5
TORCH_WHEEL_BYTES = 527_000_000
CUDA_WHEELS_BYTES = 13_000_000
# LibTorch does not depend on the Python a wheel is for; a fixed one gives every machine the same files.
WHEEL_PYTHON = "3.12"
OLDEST_GLIBC, NEWEST_GLIBC = 17, 28


class Unavailable(Exception):
    """This source cannot give a LibTorch here; the text says why."""


def from_python(root, find_spec=importlib.util.find_spec):
    """Links a torch of the right version that is installed in the Python that runs this."""
    spec = find_spec("torch")
    if spec is None or not spec.origin:
        raise Unavailable(f"no torch in {sys.executable}")
    package = Path(spec.origin).resolve().parent
    found = _installed_version(package)
    if found.split("+")[0] != VERSION:
        raise Unavailable(f"the torch in {sys.executable} is {found or 'of unknown version'}, not {VERSION}")
    if not (package / "include").is_dir() or not (package / "lib").is_dir():
        raise Unavailable(f"the torch in {sys.executable} has no headers or libraries: {package}")
    missing = wheels.link_installed(package, root)
    if missing:
        raise Unavailable(f"the torch in {sys.executable} lacks {', '.join(missing)} of its CUDA packages")


def from_archive(root, url=ARCHIVE_URL):
    """Downloads and unpacks the official CPU archive."""
    _linux_only(("x86_64",))
    download = root.parent / "libtorch.zip"
    try:
        _download(url, download)
        progress = Progress("unpacking", _unpacked_bytes(download))
        wheels.unpack_archive(download, root, progress.add)
        progress.finish()
    except (urllib.error.URLError, OSError, zipfile.BadZipFile) as error:
        raise Unavailable(f"{getattr(error, 'reason', error)} ({url})") from error
    finally:
        download.unlink(missing_ok=True)


def from_pypi(root):
    """Makes one of the wheels on PyPI, which are reached through pip and so through the user's proxy and index."""
    machine = _linux_only(("x86_64", "aarch64"))
    folder = root.parent / "wheels"
    folder.mkdir()
    try:
        torch = _pip_download([f"torch=={VERSION}"], folder / "torch", machine, TORCH_WHEEL_BYTES)
        progress = Progress("unpacking")
        cuda = wheels.unpack(torch[0], root, progress.add)
        if cuda:
            requirements = list(wheels.CUDA_REQUIREMENTS)
            for wheel in _pip_download(requirements, folder / "cuda", machine, CUDA_WHEELS_BYTES):
                wheels.unpack_cuda_runtime(wheel, root, progress.add)
        progress.finish()
    except (OSError, zipfile.BadZipFile) as error:
        raise Unavailable(f"the wheels could not be unpacked: {error}") from error
    wheels.complete(root, cuda)


# The order is the order of preference.
SOURCES = {"python": from_python, "archive": from_archive, "pypi": from_pypi}


def _installed_version(package):
    try:
        text = (package / "version.py").read_text()
    except OSError:
        return ""
    found = re.search(r"__version__ = ['\"]([^'\"]+)", text)
    return found.group(1) if found else ""


def _linux_only(machines):
    machine = platform.machine()
    if platform.system() != "Linux" or machine not in machines:
        raise Unavailable(f"nothing is published there for {platform.system()} on {machine} that fits")
    return machine


def _download(url, path):
    with urllib.request.urlopen(url, timeout=CONNECT_SECONDS) as response, open(path, "wb") as file:
        length = response.headers.get("Content-Length")
        progress = Progress("downloading the official archive", int(length) if length else None)
        while block := response.read(1 << 18):
            file.write(block)
            progress.add(len(block))
        progress.finish()
    if length and path.stat().st_size != int(length):
        raise Unavailable(f"the download ended early, at {path.stat().st_size} of {length} bytes ({url})")


def _unpacked_bytes(path):
    with zipfile.ZipFile(path) as archive:
        return sum(entry.file_size for entry in archive.infolist())


def _pip_download(requirements, folder, machine, expected_bytes):
    """The wheels of these requirements, in `folder`; pip checks their hashes against the index."""
    scratch = folder.with_name(folder.name + ".tmp")
    folder.mkdir()
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    command += ["--implementation", "cp", "--python-version", WHEEL_PYTHON, "--abi", "cp" + WHEEL_PYTHON.replace(".", "")]
    for glibc in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1):
        command += ["--platform", f"manylinux_2_{glibc}_{machine}"]
    progress = Progress(f"downloading {', '.join(requirements)} from PyPI", expected_bytes)
    # pip shows no progress in a log, and keeps what it downloads in TMPDIR: watching that folder serves both cases.
    _run_pip(command + requirements, dict(os.environ, TMPDIR=str(scratch)), lambda: progress.at(_size(scratch, folder)))
    progress.finish()
    return sorted(folder.glob("*.whl"))


def _run_pip(command, environment, on_tick):
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        while child.poll() is None:
            on_tick()
            time.sleep(0.2)
        complaint = child.stderr.read()
    except BaseException:
        child.terminate()
        child.wait()
        raise
    if child.returncode != 0:
        lines = [line for line in complaint.splitlines() if line.strip()]
        raise Unavailable(f"pip failed: {lines[-1] if lines else f'exit status {child.returncode}'}")


def _size(*folders):
    total = 0
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                total += path.stat().st_size if path.is_file() else 0
            except OSError:
                continue  # pip has moved it meanwhile
    return total
