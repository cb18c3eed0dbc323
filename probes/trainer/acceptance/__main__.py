"""The command: `python3 probes/trainer/acceptance --bin target/release`, or `make acceptance`."""

import argparse
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from acceptance.items import all_items
from acceptance.programs import Programs, Unmet
from acceptance.store import Store


def main(arguments=None):
    """Runs what is not finished, prints the table; the exit status is 1 when anything failed."""
    options = _options(arguments)
    programs = Programs(options.bin, options.out / "runs")
    missing = [str(program) for program in programs.all() if not program.exists()]
    if missing:
        print(f"error: not built: {', '.join(missing)}; run `make build`", file=sys.stderr)
        return 2
    store = Store(options.out, programs.all())
    items = [item for item in all_items() if options.only in item[1]]
    if not items:
        print(f"error: no item has {options.only!r} in its name", file=sys.stderr)
        return 2
    results = _run_all(items, programs, store, options)
    print(_table(items, results))
    return 0 if all(result["ok"] for result in results.values()) else 1


def _options(arguments):
    parser = argparse.ArgumentParser(description="The long checks; stopped, they go on where they were.")
    parser.add_argument("--bin", type=Path, required=True, help="the folder of the binaries")
    parser.add_argument("--out", type=Path, default=Path("acceptance"), help="where results are kept")
    parser.add_argument("--only", default="", help="items with this text in their name alone")
    parser.add_argument("--fresh", action="store_true", help="run again what is finished")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="items at a time (default: the cores)")
    return parser.parse_args(arguments)


def _run_all(items, programs, store, options):
    kept = {} if options.fresh else {name: store.finished(name) for _, name, _ in items}
    results = {name: result for name, result in kept.items() if result}
    if results:
        print(f"{len(results)} of {len(items)} are finished already")
    todo = [(name, check) for _, name, check in items if name not in results]
    pool = ThreadPoolExecutor(max_workers=max(1, options.jobs))
    running = {pool.submit(_run_one, check, programs): name for name, check in todo}
    try:
        for future in as_completed(running):
            name = running[future]
            results[name] = future.result()
            store.keep(name, results[name])
            _say(len(results), len(items), name, results[name])
    except KeyboardInterrupt:
        print("stopped; what is finished is kept, run it again to go on", file=sys.stderr)
        pool.shutdown(wait=False, cancel_futures=True)
        sys.exit(130)
    pool.shutdown()
    return results


def _run_one(check, programs):
    began = time.monotonic()
    try:
        result = dict(check(programs), ok=True)
    except Unmet as unmet:
        result = {"ok": False, "why": str(unmet)}
    return dict(result, seconds=round(time.monotonic() - began, 1))


def _say(done, total, name, result):
    outcome = "ok" if result["ok"] else f"FAILED: {result['why']}"
    print(f"[{done:3}/{total}] {name:32} {result['seconds']:5.1f} s  {outcome}", flush=True)


def _table(items, results):
    lines = ["", f"{'group':12} {'passed':>8}  measured"]
    for group in dict.fromkeys(group for group, _, _ in items):
        of_group = [results[name] for item_group, name, _ in items if item_group == group]
        passed = sum(result["ok"] for result in of_group)
        lines.append(f"{group:12} {passed:4}/{len(of_group):<3}  {_measured(of_group)}")
    failed = [(name, result) for name, result in results.items() if not result["ok"]]
    lines += [f"FAILED {name}: {result['why']}" for name, result in sorted(failed)]
    return "\n".join(lines)


def _measured(results):
    """Median and extremes of each number that the items of a group measured."""
    columns = {}
    for result in results:
        for key, value in result.items():
            if isinstance(value, (int, float)) and key not in ("ok", "seconds"):
                columns.setdefault(key, []).append(value)
    parts = [f"{key} {statistics.median(v):.4g} ({min(v):.4g} to {max(v):.4g})" for key, v in columns.items()]
    return ", ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
