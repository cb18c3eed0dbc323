"""The command: `python3 probes/trainer/acceptance --bin target/release`, or `make acceptance`."""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from acceptance.items import all_items
from harness.command import chosen, parser, prepared
from harness.pool import run_all


def main(arguments=None):
    """Runs what is not finished, prints the table; the exit status is 1 when anything failed."""
    options = parser("The long checks; stopped, they go on where they were.", "acceptance").parse_args(arguments)
    ready, items = prepared(options), chosen(all_items(), options.only)
    if not (ready and items):
        return 2
    results = run_all(items, *ready, options.jobs, options.fresh)
    print(_table(items, results))
    return 0 if all(result["ok"] for result in results.values()) else 1


def _table(items, results):
    lines = ["", f"{'group':12} {'passed':>8}  measured"]
    for group in dict.fromkeys(item.group for item in items):
        of_group = [results[item.name] for item in items if item.group == group]
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
