"""Tests of the set-up, without a network: `python3 -m unittest discover -s probes/torch`."""

import contextlib
import io
import os
import struct
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fetch_libtorch
from libtorch_setup import VERSION, layout, sources, wheels
from libtorch_setup.progress import Progress

VERSION_HEADER = "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 13\n#define TORCH_VERSION_PATCH 0\n"


def library(payload=b"code"):
    """A file that passes for a 64-bit ELF library whose section table is its last part."""
    table = 64 + len(payload)
    head = bytearray(64)
    head[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", head, 40, table)
    struct.pack_into("<HH", head, 58, 64, 1)
    return bytes(head) + payload + bytes(64)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def make_libtorch(root):
    for name in layout.LIBRARIES:
        write(root / name, library())
    write(root / layout.LINKED, wheels.LINKER_SCRIPT)
    write(root / layout.HEADER, "#pragma once\n")
    write(root / layout.VERSION_HEADER, VERSION_HEADER)
    write(root / "build-version", VERSION + "+cpu\n")


def make_package(site, version=VERSION, cuda=False):
    package = site / "torch"
    make_libtorch(package)
    (package / "build-version").unlink()
    write(package / "__init__.py", "")
    write(package / "version.py", f"__version__ = '{version}'\n")
    if cuda:
        write(package / "lib" / "libtorch_cuda.so", library())
        write(package / "lib" / "libtorch_python.so", library())
    return SimpleNamespace(origin=str(package / "__init__.py"))


def make_wheel(path, cuda):
    with zipfile.ZipFile(path, "w") as archive:
        for name in layout.LIBRARIES + (layout.LINKED,):
            archive.writestr("torch/" + name, library())
        archive.writestr("torch/" + layout.HEADER, "#pragma once\n")
        archive.writestr("torch/" + layout.VERSION_HEADER, VERSION_HEADER)
        archive.writestr("torch/nn/__init__.py", "")
        if cuda:
            archive.writestr("torch/lib/libtorch_cuda.so", library())
        else:
            archive.writestr("torch.libs/libgomp-1.so.1", library())


class InAFolder(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name).resolve()
        self.into = self.folder / ".libtorch"
        self.said = io.StringIO()
        quiet = contextlib.redirect_stderr(self.said)
        quiet.__enter__()
        self.addCleanup(quiet.__exit__, None, None, None)

    def only(self, **fillers):
        """Makes these the sources for the length of a test."""
        patch = mock.patch.dict(sources.SOURCES, fillers, clear=True)
        patch.start()
        self.addCleanup(patch.stop)

    def leftovers(self):
        return sorted(path.name for path in self.folder.iterdir() if path.name != ".libtorch")


class Layout(InAFolder):
    def test_a_whole_one_passes(self):
        make_libtorch(self.into)
        layout.check(self.into)

    def test_each_missing_part_is_named(self):
        for name in layout.LIBRARIES + (layout.LINKED, layout.HEADER):
            with self.subTest(name):
                make_libtorch(self.into)
                (self.into / name).unlink()
                with self.assertRaisesRegex(layout.Damaged, name):
                    layout.check(self.into)

    def test_a_library_cut_short_is_seen_without_a_manifest(self):
        make_libtorch(self.into)
        write(self.into / "lib/libc10.so", library()[:-1])
        with self.assertRaisesRegex(layout.Damaged, "libc10.so is cut short"):
            layout.check(self.into)

    def test_another_version_is_refused(self):
        make_libtorch(self.into)
        write(self.into / "build-version", "2.12.1+cpu")
        with self.assertRaisesRegex(layout.Damaged, "2.12.1, and 2.13.0 is needed"):
            layout.check(self.into)

    def test_the_headers_tell_the_version_where_no_stamp_does(self):
        make_libtorch(self.into)
        (self.into / "build-version").unlink()
        self.assertEqual(layout.version_of(self.into), VERSION)

    def test_a_changed_size_is_damage(self):
        make_libtorch(self.into)
        layout.write_manifest(self.into, "test")
        write(self.into / layout.HEADER, "#pragma once \n")
        with self.assertRaisesRegex(layout.Damaged, "bytes, not"):
            layout.verify(self.into)

    def test_changed_bytes_of_the_same_size_are_damage(self):
        make_libtorch(self.into)
        layout.write_manifest(self.into, "test")
        write(self.into / layout.HEADER, "#pragma ONCE\n")
        with self.assertRaisesRegex(layout.Damaged, "has changed"):
            layout.verify(self.into)

    def test_thorough_finds_a_change_that_kept_size_and_time(self):
        make_libtorch(self.into)
        layout.write_manifest(self.into, "test")
        times = (self.into / layout.HEADER).stat()
        write(self.into / layout.HEADER, "#pragma ONCE\n")
        os.utime(self.into / layout.HEADER, ns=(times.st_atime_ns, times.st_mtime_ns))
        self.assertEqual(layout.verify(self.into), "test")
        with self.assertRaises(layout.Damaged):
            layout.verify(self.into, thorough=True)

    def test_a_touched_file_is_no_damage(self):
        make_libtorch(self.into)
        layout.write_manifest(self.into, "test")
        os.utime(self.into / layout.HEADER, ns=(1, 1))
        self.assertEqual(layout.verify(self.into), "test")


class Prepare(InAFolder):
    def test_the_first_source_that_works_is_taken_once(self):
        calls = []

        def refuses(root):
            calls.append("a")
            raise sources.Unavailable("no network")

        def gives(root):
            calls.append("b")
            make_libtorch(root)

        self.only(a=refuses, b=gives)
        fetch_libtorch.prepare(self.into)
        fetch_libtorch.prepare(self.into)
        self.assertEqual(calls, ["a", "b"])
        self.assertEqual(layout.verify(self.into), "b")
        self.assertEqual(self.leftovers(), [])

    def test_a_damaged_one_is_built_anew(self):
        self.only(a=make_libtorch)
        fetch_libtorch.prepare(self.into)
        (self.into / "lib/libc10.so").write_bytes(b"")
        fetch_libtorch.prepare(self.into)
        self.assertEqual(layout.verify(self.into, thorough=True), "a")
        self.assertEqual(self.leftovers(), [])

    def test_one_put_there_by_hand_is_taken_over(self):
        make_libtorch(self.into)
        self.only()
        fetch_libtorch.prepare(self.into)
        self.assertEqual(layout.verify(self.into), "by hand")

    def test_what_a_source_left_half_done_is_not_taken(self):
        self.only(a=lambda root: write(root / layout.HEADER, ""))
        with self.assertRaisesRegex(fetch_libtorch.Failed, "lib/libtorch_cpu.so is missing"):
            fetch_libtorch.prepare(self.into)
        self.assertFalse(self.into.exists())

    def test_when_all_fail_each_reason_and_the_way_by_hand_are_said(self):
        def refuses(root):
            raise sources.Unavailable("the moon is full")

        self.only(a=refuses)
        with self.assertRaises(fetch_libtorch.Failed) as failure:
            fetch_libtorch.prepare(self.into)
        for text in ("a: the moon is full", sources.ARCHIVE_URL, f"pip install torch=={VERSION}", "export LIBTORCH="):
            self.assertIn(text, str(failure.exception))

    def test_an_interrupted_one_leaves_nothing_and_keeps_what_was_there(self):
        self.only(a=make_libtorch)
        fetch_libtorch.prepare(self.into)

        def interrupted(root):
            write(root / "half", "done")
            raise KeyboardInterrupt

        self.only(a=interrupted)
        with mock.patch.object(fetch_libtorch, "CHECKOUT", self.folder):
            status = fetch_libtorch.main(["--into", str(self.into), "--source", "a"], {})
        self.assertEqual(status, 130)
        self.assertEqual(layout.verify(self.into), "a")
        self.assertEqual(self.leftovers(), [])

    def test_leftovers_of_a_killed_run_go_and_those_of_a_live_one_stay(self):
        (self.folder / ".libtorch.partial-999999999").mkdir()
        alive = self.folder / f".libtorch.partial-{os.getppid()}"
        alive.mkdir()
        self.only(a=make_libtorch)
        fetch_libtorch.prepare(self.into)
        self.assertEqual(self.leftovers(), [alive.name])


class UsersChoice(InAFolder):
    def run_main(self, **environment):
        self.only()
        return fetch_libtorch.main(["--into", str(self.into)], environment)

    def test_a_libtorch_that_fits_is_used_and_nothing_is_fetched(self):
        make_libtorch(self.folder / "mine")
        self.assertEqual(self.run_main(LIBTORCH=str(self.folder / "mine")), 0)
        self.assertFalse(self.into.exists())

    def test_one_of_another_version_is_an_error(self):
        make_libtorch(self.folder / "mine")
        write(self.folder / "mine/build-version", "2.5.0")
        self.assertEqual(self.run_main(LIBTORCH=str(self.folder / "mine")), 1)
        self.assertIn("it is LibTorch 2.5.0, and 2.13.0 is needed", self.said.getvalue())

    def test_a_relative_path_is_an_error(self):
        self.assertEqual(self.run_main(LIBTORCH="libtorch"), 1)
        self.assertIn("absolute", self.said.getvalue())


class InstalledTorch(InAFolder):
    def link(self, **package):
        spec = make_package(self.folder / "site", **package)
        self.into.mkdir()
        sources.from_python(self.into, find_spec=lambda name: spec)

    def test_a_cpu_build_is_linked_whole(self):
        self.link(version=VERSION + "+cpu")
        layout.check(self.into)
        self.assertTrue((self.into / "lib").is_symlink())

    def test_of_a_cuda_build_the_cpu_part_is_linked(self):
        for name in wheels.CUDA_RUNTIME:
            write(self.folder / "site/nvidia/cu13/lib" / name, library())
        self.link(cuda=True)
        layout.check(self.into)
        names = sorted(path.name for path in (self.into / "lib").iterdir())
        self.assertEqual(
            names, ["libc10.so", "libcudart.so.13", "libcupti.so.13", "libtorch.so", "libtorch_cpu.so"]
        )
        self.assertEqual((self.into / layout.LINKED).read_text(), wheels.LINKER_SCRIPT)

    def test_a_cuda_build_without_its_cuda_packages_is_refused(self):
        with self.assertRaisesRegex(sources.Unavailable, "lacks libcupti.so.13, libcudart.so.13"):
            self.link(cuda=True)

    def test_another_version_is_refused_by_name(self):
        with self.assertRaisesRegex(sources.Unavailable, "is 2.9.0"):
            self.link(version="2.9.0+cu128")

    def test_no_torch_is_said_so(self):
        with self.assertRaisesRegex(sources.Unavailable, "no torch in"):
            sources.from_python(self.into, find_spec=lambda name: None)

    def test_removing_the_torch_it_links_to_is_damage(self):
        self.link(version=VERSION)
        layout.write_manifest(self.into, "python")
        (self.folder / "site/torch/lib/libc10.so").unlink()
        with self.assertRaisesRegex(layout.Damaged, "libc10.so is missing"):
            layout.verify(self.into)


class Wheels(InAFolder):
    def unpack(self, cuda):
        make_wheel(self.folder / "torch.whl", cuda)
        self.into.mkdir()
        counted = []
        self.assertEqual(wheels.unpack(self.folder / "torch.whl", self.into, counted.append), cuda)
        wheels.complete(self.into, cuda)
        self.assertGreater(sum(counted), 0)
        return sorted(path.name for path in (self.into / "lib").iterdir())

    def test_a_cuda_wheel_gives_a_cpu_libtorch(self):
        self.assertEqual(self.unpack(cuda=True), ["libc10.so", "libtorch.so", "libtorch_cpu.so"])
        self.assertEqual((self.into / layout.LINKED).read_text(), wheels.LINKER_SCRIPT)
        layout.check(self.into)

    def test_a_cpu_wheel_keeps_its_own_libtorch_and_what_it_bundles(self):
        self.assertIn("libgomp-1.so.1", self.unpack(cuda=False))
        self.assertEqual((self.into / layout.LINKED).read_bytes(), library())
        layout.check(self.into)

    def test_an_entry_that_leads_out_of_the_folder_is_refused(self):
        with zipfile.ZipFile(self.folder / "bad.zip", "w") as archive:
            archive.writestr("libtorch/../../escaped", "x")
        with self.assertRaises(zipfile.BadZipFile):
            wheels.unpack_archive(self.folder / "bad.zip", self.into, lambda count: None)
        self.assertFalse((self.folder.parent / "escaped").exists())


class Archive(InAFolder):
    def serve(self, path):
        self.root = self.folder / "work" / "archive"
        self.root.mkdir(parents=True)
        patch = mock.patch.object(sources.platform, "machine", lambda: "x86_64")
        patch.start()
        self.addCleanup(patch.stop)
        sources.from_archive(self.root, url=path.as_uri())

    def test_the_official_archive_unpacks(self):
        make_libtorch(self.folder / "source")
        with zipfile.ZipFile(self.folder / "libtorch.zip", "w") as archive:
            for path in sorted((self.folder / "source").rglob("*")):
                archive.write(path, "libtorch/" + path.relative_to(self.folder / "source").as_posix())
        self.serve(self.folder / "libtorch.zip")
        layout.check(self.root)
        self.assertEqual(list(self.root.parent.iterdir()), [self.root])

    def test_a_page_instead_of_an_archive_is_refused(self):
        write(self.folder / "login.html", "<html>please log in</html>")
        with self.assertRaisesRegex(sources.Unavailable, "not a zip file"):
            self.serve(self.folder / "login.html")

    def test_what_cannot_be_reached_is_refused_with_its_address(self):
        with self.assertRaisesRegex(sources.Unavailable, "nowhere.zip"):
            self.serve(self.folder / "nowhere.zip")


class Pip(InAFolder):
    def test_what_pip_says_last_is_the_reason(self):
        script = "import sys; sys.exit('first line\\nERROR: no matching distribution')"
        with self.assertRaisesRegex(sources.Unavailable, "pip failed: ERROR: no matching distribution"):
            sources._run_pip([sys.executable, "-c", script], dict(os.environ), lambda: None)

    def test_an_interrupt_ends_pip_too(self):
        marker = self.folder / "survived"
        script = f"import time, pathlib; time.sleep(1); pathlib.Path({str(marker)!r}).touch()"

        def interrupt():
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            sources._run_pip([sys.executable, "-c", script], dict(os.environ), interrupt)
        self.assertFalse(marker.exists())


class Progressing(unittest.TestCase):
    def lines(self, terminal):
        stream = io.StringIO()
        stream.isatty = lambda: terminal
        seconds = iter(range(0, 10_000))
        progress = Progress("downloading", 100_000_000, stream, clock=lambda: next(seconds) * 0.1)
        for _ in range(100):
            progress.add(1_000_000)
        progress.finish()
        return stream.getvalue()

    def test_a_log_gets_few_lines(self):
        lines = self.lines(terminal=False).splitlines()
        self.assertLessEqual(len(lines), 6)
        self.assertIn("100 %", lines[-1])

    def test_a_terminal_gets_one_line_that_moves(self):
        shown = self.lines(terminal=True)
        self.assertEqual(shown.count("\n"), 1)
        self.assertGreater(shown.count("\r"), 10)


if __name__ == "__main__":
    unittest.main()
