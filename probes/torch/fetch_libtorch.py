#!/usr/bin/env python3
"""Puts LibTorch into .libtorch, once: `make libtorch`.

Sources, in this order: the LIBTORCH that you have set; a torch of the right version in your Python; the official CPU
archive; the wheels on PyPI. Needs python3 and, for the last source, pip. Nothing is installed outside the folder.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from libtorch_setup import VERSION, layout, sources
from libtorch_setup.progress import Progress

CHECKOUT = Path(__file__).resolve().parents[2]


class Failed(Exception):
    """No LibTorch could be had; the text says what to do."""


def main(arguments=None, environment=os.environ):
    """The command: its exit status."""
    options = _options(arguments)
    try:
        if options.source is None and _is_users_choice(environment):
            return 0
        prepare(options.into, options.source, options.verify)
    except Failed as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; nothing half-finished is left behind, run it again to start over", file=sys.stderr)
        return 130
    return 0


def prepare(into, source=None, thorough=False):
    """Makes sure that `into` holds a whole LibTorch; builds it where it does not."""
    into = Path(os.path.realpath(into))
    _remove_leftovers(into)
    if source is None and _is_ready(into, thorough):
        return
    partial = into.with_name(f"{into.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        root, word = _fill(partial, [source] if source else list(sources.SOURCES), into)
        _seal(root, word)
        _move_into_place(root, into, partial)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _say(f"LibTorch {VERSION} is ready: {into}")


def _options(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=CHECKOUT / ".libtorch", help="the folder (default: .libtorch)")
    parser.add_argument("--source", choices=list(sources.SOURCES), help="take this source alone, and build anew")
    parser.add_argument("--verify", action="store_true", help="compare the hash of every file, not only size and time")
    return parser.parse_args(arguments)


def _is_users_choice(environment):
    """Whether the user has chosen a LibTorch; one that does not fit is an error, not a reason to take another."""
    if environment.get("LIBTORCH_USE_PYTORCH"):
        _say("LIBTORCH_USE_PYTORCH is set: the torch in your Python is used, nothing is fetched")
        return True
    chosen = environment.get("LIBTORCH")
    if not chosen:
        return False
    if not Path(chosen).is_absolute():
        raise Failed(f"LIBTORCH must be an absolute path, because cargo builds in other folders. It is: {chosen}")
    try:
        layout.check_parts(environment.get("LIBTORCH_INCLUDE") or chosen, environment.get("LIBTORCH_LIB") or chosen)
    except layout.Damaged as reason:
        raise Failed(
            f"LIBTORCH does not fit: {reason}.\n"
            f"  Point it at LibTorch {VERSION}, or unset it to have one fetched. It is: {chosen}"
        ) from None
    _say(f"LibTorch {VERSION} of your own is used: {chosen}")
    return True


def _is_ready(into, thorough):
    if not into.is_dir() or not any(into.iterdir()):
        return False
    try:
        if not (into / layout.MANIFEST).exists():
            # Put there by hand, as the message of a failure suggests.
            layout.check(into)
            _say(f"taking over the LibTorch that lies in {into}")
            _seal(into, "by hand")
        word = layout.verify(into, thorough)
    except layout.Damaged as reason:
        _say(f"{into} is not whole and is built anew: {reason}")
        return False
    _say(f"LibTorch {VERSION} is there ({word}): {into}")
    return True


def _fill(partial, names, into):
    """The folder that the first working source filled, and the source's name."""
    reasons = []
    for name in names:
        root = partial / name
        root.mkdir()
        _say(f"LibTorch {VERSION} from source '{name}' ...")
        try:
            sources.SOURCES[name](root)
            layout.check(root)
            return root, name
        except (sources.Unavailable, layout.Damaged) as reason:
            _say(f"  not from there: {reason}")
            reasons.append(f"  {name}: {reason}")
            shutil.rmtree(root, ignore_errors=True)
        except OSError as error:
            raise Failed(f"the folder could not be written: {error}") from error
    raise Failed(_by_hand(reasons, into))


def _by_hand(reasons, into):
    return "\n".join(
        [f"no source gave LibTorch {VERSION}:"]
        + reasons
        + [
            "Do one of these, then run it again:",
            f"  - on a machine with a network, download {sources.ARCHIVE_URL}",
            f"    and unpack it here, so that {into}/lib/libtorch_cpu.so exists;",
            f"  - install it into the Python that you use: pip install torch=={VERSION};",
            f"  - export LIBTORCH=/absolute/path/of/a/LibTorch/{VERSION}.",
        ]
    )


def _seal(root, word):
    progress = Progress("checking")
    layout.write_manifest(root, word, progress.add)
    progress.finish()


def _move_into_place(root, into, partial):
    old = partial / "old"
    if into.exists():
        os.rename(into, old)
    os.rename(root, into)


def _remove_leftovers(into):
    """Removes what a killed run left; a folder of a run that still goes on stays."""
    for path in into.parent.glob(f"{into.name}.partial-*"):
        pid = path.name.rpartition("-")[2]
        if not (pid.isdigit() and Path(f"/proc/{pid}").exists()):
            shutil.rmtree(path, ignore_errors=True)


def _say(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
