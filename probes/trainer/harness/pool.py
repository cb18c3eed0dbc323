"""Items that are run side by side, each kept as soon as it is finished."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Callable, NamedTuple

from .programs import Unmet


class Item(NamedTuple):
    """A check: its group, a name of its own, the function of the programs, and what its result depends on besides the programs."""

    group: str
    name: str
    check: Callable
    key: str = ""


def run_all(items, programs, store, jobs, fresh=False):
    """Runs what is not finished; the result of each item by its name."""
    kept = {} if fresh else {item.name: store.finished(item.name, item.key) for item in items}
    results = {name: result for name, result in kept.items() if result}
    if results:
        print(f"{len(results)} of {len(items)} are finished already")
    todo = [item for item in items if item.name not in results]
    pool = ThreadPoolExecutor(max_workers=max(1, jobs))
    running = {pool.submit(_run_one, item.check, programs): item for item in todo}
    try:
        for future in as_completed(running):
            item = running[future]
            results[item.name] = future.result()
            store.keep(item.name, results[item.name], item.key)
            _say(len(results), len(items), item.name, results[item.name])
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
    outcome = result.get("said", "ok") if result["ok"] else f"FAILED: {result['why']}"
    print(f"[{done:3}/{total}] {name:32} {result['seconds']:5.1f} s  {outcome}", flush=True)
