"""The command line of the long checks: which programs, where results are kept, how many at a time."""

import argparse
import os
import sys
from pathlib import Path

from .pool import Item
from .programs import Programs
from .store import Store


def parser(description, out):
    """The options that every such command has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--bin", type=Path, required=True, help="the folder of the binaries")
    options.add_argument("--out", type=Path, default=Path(out), help="where results are kept")
    options.add_argument("--only", default="", help="items with this text in their name alone")
    options.add_argument("--fresh", action="store_true", help="run again what is finished")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="items at a time (default: the cores)")
    return options


def prepared(options):
    """The programs and the store, or None after saying what is not built."""
    programs = Programs(options.bin, options.out / "runs")
    missing = [str(program) for program in programs.all() if not program.exists()]
    if missing:
        print(f"error: not built: {', '.join(missing)}; run `make build`", file=sys.stderr)
        return None
    return programs, Store(options.out, programs.all())


def chosen(items, only):
    """The items with this text in their name; None, after saying so, when there are none."""
    items = [item for item in (Item(*item) for item in items) if only in item.name]
    if not items:
        print(f"error: no item has {only!r} in its name", file=sys.stderr)
    return items or None
