"""How far each threshold stands from healthy and from faulty runs: a recording is judged again with the threshold elsewhere.

No rule is asked for its statistic. A threshold is moved by octaves, up and down, until a healthy run gives a finding of its rule, or until the
fault of a faulty run is no longer found: the value at which that happens is the statistic of that run, in the unit of the threshold.
"""

from typing import NamedTuple

from harness.programs import Unmet

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
    return tuple(_turn(threshold, holds, sign) for sign in (-1, 1))


def _turn(threshold, holds, sign):
    far = sign * FARTHEST
    if threshold.moved(far) == threshold.default or holds(threshold.moved(far)):
        return None
    good, bad = 0.0, float(far)
    while abs(bad - good) > NEAREST and threshold.moved(bad) != threshold.moved(good):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if holds(threshold.moved(middle)) else (good, middle)
    return threshold.moved(bad)


def written(threshold, value):
    """The configuration that sets a threshold to a value."""
    return f"[rules.{threshold.rule}]\n{threshold.name} = {value!r}\n"


def healthy_margins(programs, run, thresholds):
    """For each threshold the values at which its rule would find something in a healthy run."""
    return _margins(programs, run, thresholds, lambda threshold: lambda found: not any(f["code"] == threshold.code for f in found))


def faulty_margins(programs, run, thresholds, right):
    """For each threshold the values at which the right finding would be missed."""
    return _margins(programs, run, thresholds, lambda _: lambda found: any(map(right, found)))


def _margins(programs, run, thresholds, wanted):
    margins = {}
    for threshold in thresholds:
        as_wanted = wanted(threshold)

        def holds(value):
            config = run / "moved.toml"
            config.write_text(written(threshold, value))
            try:
                _, report = programs.check(run, config)
            except Unmet:
                # The configuration refuses such a value: the threshold cannot stand there.
                return True
            return as_wanted([one for root in report["findings"] for one in (root, *root["consequences"])])

        if holds(threshold.default):
            margins[threshold.title()] = turning_points(threshold, holds)
    return margins
