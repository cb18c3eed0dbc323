"""The command: `python3 probes/trainer/corpus --bin target/release`, or `make corpus`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from corpus import fixtures, page
from corpus.cases import CASES
from corpus.healthy import healthy_items
from corpus.margins import listed
from corpus.runs import trial_check
from corpus.trials import trials
from corpus.whatif import whatif_items
from harness.command import chosen, parser, prepared
from harness.pool import Item, run_all
from harness.programs import Unmet

# Thresholds are chosen on the seeds 1 to 5; what is reported comes from others.
SEEDS = "6,7"


def main(arguments=None):
    """Runs what is not finished, prints and writes the figures; the exit status is 1 where a fault was missed or health was doubted."""
    options = _options().parse_args(arguments)
    ready = prepared(options)
    if not ready:
        return 2
    programs, store = ready
    if options.fixtures:
        return _renew(programs, options)
    try:
        items, absent = _items(programs, [int(seed) for seed in options.seeds.split(",")])
    except Unmet as unmet:
        print(f"error: {unmet}", file=sys.stderr)
        return 2
    items = chosen(items, options.only)
    if not items:
        return 2
    results = run_all(items, programs, store, options.jobs, options.fresh)
    print(page.short(results))
    if options.page:
        options.page.write_text(page.written(results, absent, options.seeds, listed(programs.rules())))
    return 0 if all(_is_as_it_should(result) for result in results.values()) else 1


def _is_as_it_should(result):
    cure = result.get("cure", {"gone": True})
    return result["ok"] and result["right"] and not result.get("faults") and cure["gone"]


def _options():
    options = parser("The doctor, judged on runs with known faults and on runs that are well; stopped, it goes on where it was.", "corpus")
    options.add_argument("--seeds", default=SEEDS, help=f"seeds, with commas between (default: {SEEDS})")
    options.add_argument("--page", type=Path, help="write the figures to this file")
    options.add_argument("--fixtures", type=Path, help="renew the small recordings in this folder, and nothing else")
    return options


def _renew(programs, options):
    cases = [case for case in _known(programs) if options.only in case.name]
    unshown = fixtures.renew(programs, cases, options.fixtures, options.jobs)
    for name in unshown:
        print(f"error: no short run shows {name}", file=sys.stderr)
    return 1 if unshown else 0


def _items(programs, seeds):
    """All items, and the names of the cases whose fault this trainer does not know."""
    known, thresholds = _known(programs), listed(programs.rules())
    items = [_item(trial, thresholds if _is_measured(trial, seeds) else ()) for trial in trials(known, seeds)]
    items += whatif_items(seeds)
    items += healthy_items(seeds, programs.flags(), programs.faults(), thresholds)
    return items, [case.name for case in CASES if case not in known]


def _item(trial, thresholds):
    return Item("case", trial.name, trial_check(trial, thresholds), trial.key() + str(len(thresholds)))


def _is_measured(trial, seeds):
    """The margins of the thresholds are measured on one run of each case and model."""
    layers = trial.case.layers.get(trial.model, ("",))
    return trial.seed == seeds[0] and trial.layer == layers[len(layers) // 2]


def _known(programs):
    """The cases that this trainer can show."""
    faults, flags = programs.faults(), programs.flags()
    return [case for case in CASES if _is_known(case, faults, flags)]


def _is_known(case, faults, flags):
    asked = {word for word in case.arguments if isinstance(word, str) and word.startswith("--")}
    return (not case.fault or case.fault.split("=")[0] in faults) and asked <= flags


if __name__ == "__main__":
    sys.exit(main())
