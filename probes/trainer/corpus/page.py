"""docs/diagnosis.md: the figures, written from the results. Functions of results; nothing runs here."""

from . import whatif
from .cases import CASES
from .healthy import WATCHED
from .people import seen
from .remedies import remedies
from .tables import distance, margins, matrix, missed, per_case, table

HEAD = """# How good the diagnosis is

The doctor is judged on runs with known faults, of which each has to be found by the right code, at the right layer and soon, and on
runs that are well, of which it has to say nothing. Written by `{command}`; do not edit. Thresholds were chosen on the seeds 1 to 5;
the figures here come from the seeds {seeds}. Every faulty run is watched at every step.

A run counts as right when the code stands as a finding of its own (not as the consequence of another) at the layer in which the fault was
planted, and no other finding comes before it. *Steps* are those from the first faulty step to the one after which the finding
first stood: the recording is cut after each step and judged, as somebody who watched would have seen it.

`tests/twins.rs` has the pairs of gradients that FP16 shows alike, one lost and one sparse by design.
"""


def written(results, absent, seeds, thresholds):
    """The page."""
    cases, healthy = split(results)
    parts = [
        HEAD.format(command="make corpus", seeds=seeds.replace(",", ", ")),
        "## In short\n\n" + _short_table(cases, healthy),
        "## Faults\n\n" + per_case(cases, CASES),
        "## What people see\n\nKinds of failure that are reported in public, each with the runs that show it and the code that was named first in them (how often).\n\n"
        + seen(cases, healthy),
        "## What was named\n\nRows: what was planted. Columns: the code that was named first.\n\n" + matrix(cases),
        "## What went wrong\n\n" + missed(cases, healthy),
        "## Runs that are well\n\n" + _healthy_table(healthy),
        "## Remedies\n\n" + remedies(cases),
        "## Thresholds\n\n" + margins(cases, healthy, thresholds),
    ]
    parts += [part for part in [whatif.section(results)] if part]
    if absent:
        parts.append("## Not run\n\nThe trainer has no such fault: " + ", ".join(absent) + ".")
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def short(results):
    """The figures for the terminal."""
    cases, healthy = split(results)
    return "\n".join(["", _short_table(cases, healthy), "", matrix(cases), "", missed(cases, healthy)])


def split(results):
    """The results of faulty runs and those of healthy ones, each by name; what could not be run is in neither."""
    done = {name: result for name, result in results.items() if result["ok"]}
    cases = {name: result for name, result in done.items() if "case" in result}
    healthy = {name: result for name, result in done.items() if "way" in result}
    return cases, healthy


def _short_table(cases, healthy):
    of = list(cases.values())
    placed = [result for result in of if result["layer"]]
    at_once = [result for result in of if result["within"] is not None]
    rows = [
        ("faulty runs, right code at the right layer", _share([r["right"] for r in of])),
        ("... and named first, nothing before the fault, in time", _share([not r["faults"] for r in of])),
        ("... of those with one layer to blame: the layer is right", _share([r["right"] for r in placed])),
        ("... of those visible at once: within the steps allowed", _share([_in_time(r) for r in at_once])),
        ("steps from onset to finding, visible at once", distance([r["steps"] for r in at_once])),
        ("steps from onset to finding, others", distance([r["steps"] for r in of if r["within"] is None])),
    ]
    for way in WATCHED:
        quiet = [result["right"] for result in healthy.values() if result["way"] == way]
        rows.append((f"healthy runs without a finding, {_way(way)}", _share(quiet)))
    treated = [result["cure"]["gone"] for result in of if "cure" in result]
    rows.append(("remedies that settings of the trainer follow: applied, the finding is gone", _share(treated)))
    rows.append(("remedies that name what the trainer cannot set", sum(bool(result.get("beyond")) for result in of)))
    return table(("", ""), rows)


def _in_time(result):
    return result["steps"] is not None and result["steps"] <= result["within"]


def _healthy_table(healthy):
    rows = []
    for group in dict.fromkeys(result["group"] for result in healthy.values()):
        for way in WATCHED:
            of = [r for r in healthy.values() if (r["group"], r["way"]) == (group, way)]
            unsure = sorted({code for result in of for code in result["unsure"]})
            rows.append((group, _way(way), len(of), sum(not r["right"] for r in of), ", ".join(unsure) or "none"))
    return table(("set", "watched", "runs", "false alarms", "rules that could not tell"), rows)


def _way(way):
    return {"every-1": "at every step", "budget": "under the default budget"}[way]


def _share(flags):
    return f"{sum(flags)} of {len(flags)}" + (f" ({100 * sum(flags) / len(flags):.1f} %)" if flags else "")
