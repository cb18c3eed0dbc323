"""Tables of the page, in Markdown."""

import math
import statistics

# Findings that are gone do not make a run good: its loss is compared with FP32's.
CLOSE = 0.01


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


def cures(results):
    """A row a case and model: the settings printed, whether the finding went, and the loss beside FP32's, over the seeds."""
    groups = {}
    for result in results.values():
        if "cure" in result:
            groups.setdefault((result["case"], result["model"]), []).append(result)
    rows = [(f"`{case}`", model, *_cure_row(of)) for (case, model), of in groups.items()]
    if not rows:
        return "No remedy that was printed names a setting of the trainer."
    head = ("case", "model", "settings printed", "gone", "loss / FP32's, faulty", "with the remedy", "FP32 among seeds", "")
    return (
        "The settings that the remedy names are set and the run is trained again, with the same seed. The losses are means of the last 50\n"
        "steps; the ratio to FP32's is that of pairs of one seed, geometric mean and standard error. *FP32 among seeds* is by how\n"
        "much FP32's own loss differs from seed to seed (standard deviation).\n\n" + table(head, rows)
    )


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


def _cure_row(of):
    printed = sorted({", ".join(f"{k} {_value(v)}" for k, v in result["set"].items()) for result in of})
    gone = f"{sum(result['cure']['gone'] for result in of)}/{len(of)}"
    pairs = [result["cure"] for result in of if "fp32_loss" in result["cure"]]
    faulty = _ratio([(pair["faulty_loss"], pair["fp32_loss"]) for pair in pairs])
    treated = _ratio([(pair["loss"], pair["fp32_loss"]) for pair in pairs])
    fp32 = [float(pair["fp32_loss"]) for pair in pairs]
    noise = statistics.stdev(fp32) / statistics.mean(fp32) if len(fp32) > 1 else math.nan
    said = "; ".join(printed[:2]) + ("; ..." if len(printed) > 2 else "")
    return said, gone, _ratio_text(faulty), _ratio_text(treated), _percent(noise), _judged(treated, noise)


def _ratio(pairs):
    """Geometric mean of the ratios and its standard error; NaN where a loss is not finite."""
    logs = [math.log(_finite(a) / _finite(b)) for a, b in pairs]
    if not logs or not all(map(math.isfinite, logs)):
        return math.nan, math.nan
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return math.exp(statistics.mean(logs)), error


def _finite(value):
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) and number > 0 else math.nan


def _judged(ratio, noise):
    mean, error = ratio
    if not math.isfinite(mean):
        return "not finite"
    if abs(mean - 1) <= CLOSE:
        return "within 1 %"
    spread = [2 * deviation for deviation in (error, noise) if math.isfinite(deviation)]
    return "within the noise" if abs(math.log(mean)) <= max(spread, default=0) else "differs"


def _ratio_text(ratio):
    mean, error = ratio
    if not math.isfinite(mean):
        return "not finite"
    return f"{mean:.4g}" + (f" ± {error:.2g}" if math.isfinite(error) else "")


def _percent(share):
    return f"{100 * share:.1f} %" if math.isfinite(share) else "one seed"


def _value(value):
    """A power of two as such; other numbers in few digits."""
    if isinstance(value, (int, float)) and value > 0 and math.log2(value).is_integer() and (value >= 1024 or value < 1):
        return f"2^{int(math.log2(value))}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
