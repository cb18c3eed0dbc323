"""Tables of the page, in Markdown."""

import math
import statistics


def table(heads, rows):
    """A table in Markdown, its columns aligned so that a terminal shows it as well."""
    cells = [tuple(str(cell) for cell in row) for row in rows]
    widths = [max([3, len(head), *(len(row[i]) for row in cells)]) for i, head in enumerate(heads)]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([_line(heads, widths), rule, *(_line(row, widths) for row in cells)])


def _line(row, widths):
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |"


def distance(steps):
    """Median and largest of the steps that there are."""
    there = [step for step in steps if step is not None]
    return f"median {statistics.median(there):g}, at most {max(there)}" if there else "none"


def per_case(results, cases):
    """A row a case: what is seen, what has to be said, how often it was."""
    rows = []
    for case in cases:
        of = [result for result in results.values() if result["case"] == case.name]
        if of:
            right, clean = sum(r["right"] for r in of), sum(not r["faults"] for r in of)
            allowed = "the run" if case.within is None else case.within
            codes = " or ".join(case.codes)
            rows.append((f"`{case.name}`", case.sees, codes, f"{right}/{len(of)}", f"{clean}/{len(of)}", distance([r["steps"] for r in of]), allowed))
    return table(("case", "what is seen", "expected", "found", "first, in time", "steps", "allowed"), rows)


def matrix(results):
    """Expected codes against the code that was named first."""
    counts = {}
    for result in results.values():
        row = "/".join(result["expected"])
        pair = row, row if result["found"] in result["expected"] else result["found"]
        counts[pair] = counts.get(pair, 0) + 1
    expected = sorted({row for row, _ in counts})
    found = expected + sorted({column for _, column in counts} - set(expected))
    rows = [(row, *(counts.get((row, column), "") for column in found)) for row in expected]
    return table(("planted", *found), rows)


def missed(cases, healthy):
    """Everything that was not as it has to be, a line each."""
    lines = [f"* `{name}`: {fault}" for name, result in sorted(cases.items()) for fault in result["faults"]]
    lines += [f"* `{name}`: {'; '.join(r['findings'])}" for name, r in sorted(healthy.items()) if not r["right"]]
    lines += [f"* `{name}`: a loss of {r['loss']}, not converged" for name, r in sorted(healthy.items()) if not r["converged"]]
    for name, result in sorted(cases.items()):
        cure = result.get("cure")
        if cure and not cure["gone"]:
            lines.append(f"* `{name}`, with the remedy in place: {'; '.join(cure['left'])}")
    return "\n".join(lines) or "Nothing."


def margins(cases, healthy, thresholds):
    """A row a threshold: the values at which healthy runs would raise an alarm, and those at which faults would be missed."""
    if not thresholds:
        return "This ampdoctor lists no thresholds."
    rows = []
    for threshold in thresholds:
        alarms, misses = _turned(healthy, threshold), _turned(cases, threshold)
        name = f"`{threshold.rule}` {threshold.name}"
        rows.append((threshold.code, name, f"{threshold.default:g}", threshold.unit, *map(_side, (alarms, misses))))
    head = ("rule", "threshold", "default", "unit", "healthy runs alarm from", "faults are missed from")
    return (
        "No rule is asked for its statistic: each recording is judged again with the threshold moved, by up to 20 octaves either way, until a\n"
        "healthy run gives a finding of the rule or the fault is no longer found. The value at which that happens is where the run\n"
        "stands, in the unit of the threshold: nearest to the default, median, and how many of the runs turn at all. Where several thresholds\n"
        "have to hold, or one of several is enough, moving one alone may turn nothing.\n\n" + table(head, rows)
    )


def _turned(results, threshold):
    """The nearest turning point of each run on which the threshold was moved; None where it turns nowhere."""
    points = [r["margins"][threshold.title()] for r in results.values() if threshold.title() in r.get("margins", {})]

    def octaves(value):
        return abs(math.log2(value / threshold.default)) if value > 0 else math.inf

    return [min((value for value in pair if value is not None), key=octaves, default=None) for pair in points], octaves


def _side(turned):
    points, octaves = turned
    there = sorted((value for value in points if value is not None), key=octaves)
    if not there:
        return f"none of {len(points)}" if points else "not measured"
    median = there[len(there) // 2]
    return f"{there[0]:.3g}, median {median:.3g} ({len(there)} of {len(points)})"
