"""How far each threshold stands from healthy and from faulty runs: a recording is judged again with the threshold elsewhere.

No rule is asked for its statistic. A threshold is moved by octaves, up and down, until a healthy run gives a finding of its rule, or until the
fault of a faulty run is no longer found: the value at which that happens is the statistic of that run, in the unit of the threshold.
"""

from itertools import zip_longest
from typing import NamedTuple

from harness.programs import Unmet
from harness.runs import everything

# Octaves by which a threshold is moved at most, and to which the value is found.
FARTHEST, NEAREST = 20, 0.25
COUNTS = ("steps", "scans", "scanned", "samples", "scaler", "skips", "bursts", "growths", "losses")


class Threshold(NamedTuple):
    """A threshold as `ampdoctor rules --format json` lists it."""

    code: str
    rule: str
    name: str
    default: float
    unit: str
    reason: str

    def title(self):
        """The name under which results are kept."""
        return f"{self.rule}.{self.name}"

    def moved(self, octaves):
        """The value so many octaves away, within what the configuration takes."""
        value = self.default * 2.0**octaves
        if self.unit.startswith("share"):
            return min(value, 1.0)
        return float(max(1, round(value))) if self.unit.startswith(COUNTS) else value


def listed(rules):
    """The thresholds of the rules, as `ampdoctor rules --format json` has them; none where it has none."""
    return [
        Threshold(rule["code"], rule["name"], one["name"], one["default"], one["unit"], one["reason"])
        for rule in rules
        for one in rule.get("thresholds", ())
        if one["default"] != 0
    ]


def turning_points(threshold, holds):
    """The nearest values below and above the default at which `holds(value)` is no longer true; None where it is true everywhere.

    It is taken to be true up to one value and false from there on.
    """
    (points,) = searched({threshold: search(threshold)}, lambda asked: {threshold: holds(asked[threshold])}).values()
    return points


def search(threshold):
    """Yields the values at which it has to be known whether all is as it was, takes the answers, and returns the turning points."""
    below = yield from _turn(threshold, -1)
    above = yield from _turn(threshold, 1)
    return below, above


def _turn(threshold, sign):
    far = sign * FARTHEST
    if threshold.moved(far) == threshold.default or (yield threshold.moved(far)):
        return None
    good, bad = 0.0, float(far)
    while abs(bad - good) > NEAREST and threshold.moved(bad) != threshold.moved(good):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if (yield threshold.moved(middle)) else (good, middle)
    return threshold.moved(bad)


def searched(searches, answered):
    """Runs searches side by side: `answered` takes the value that each asks for and gives the answers; what each returns, by its key."""
    found, answers = {}, dict.fromkeys(searches)
    while answers:
        asked = {}
        for key, answer in answers.items():
            try:
                asked[key] = searches[key].send(answer)
            except StopIteration as ended:
                found[key] = ended.value
        answers = answered(asked) if asked else {}
    return found


def written(threshold, value):
    """The configuration that sets a threshold to a value."""
    return f"[rules.{threshold.rule}]\n{threshold.name} = {value!r}\n"


def healthy_margins(programs, run, thresholds):
    """For each threshold the values at which its rule would find something in a healthy run.

    A rule compares with its own thresholds alone, so that one of every rule is moved at a time.
    """
    margins = {}
    for moved in _one_of_each_rule(thresholds):
        margins.update(_margins(programs, run, moved, lambda threshold: lambda found: all(f["code"] != threshold.code for f in found)))
    return margins


def faulty_margins(programs, run, thresholds, right):
    """For each threshold the values at which the right finding would be missed."""
    margins = {}
    for threshold in thresholds:
        margins.update(_margins(programs, run, [threshold], lambda _: lambda found: any(map(right, found))))
    return margins


def _one_of_each_rule(thresholds):
    by_rule = {}
    for threshold in thresholds:
        by_rule.setdefault(threshold.rule, []).append(threshold)
    rounds = zip_longest(*by_rule.values())
    return [[threshold for threshold in taken if threshold is not None] for taken in rounds]


def _margins(programs, run, thresholds, wanted):
    def answered(asked):
        found = _found(programs, run, asked)
        if found is not None:
            return {threshold: wanted(threshold)(found) for threshold in asked}
        if len(asked) == 1:
            # The configuration refuses such a value: the threshold cannot stand there.
            return dict.fromkeys(asked, True)
        half = list(asked)[: len(asked) // 2]
        rest = {threshold: value for threshold, value in asked.items() if threshold not in half}
        return answered({threshold: asked[threshold] for threshold in half}) | answered(rest)

    as_they_are = answered({threshold: threshold.default for threshold in thresholds})
    points = searched({threshold: search(threshold) for threshold, holds in as_they_are.items() if holds}, answered)
    return {threshold.title(): pair for threshold, pair in points.items()}


def _found(programs, run, values):
    """What is found with these values, consequences among it; None where the configuration refuses one."""
    config = run / "moved.toml"
    config.write_text("".join(written(threshold, value) for threshold, value in values.items()))
    try:
        _, report = programs.check(run, config)
    except Unmet:
        return None
    return everything(report["findings"])
