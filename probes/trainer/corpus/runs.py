"""The runs of the corpus: a trial is trained, judged, and cut to find when its finding first stood."""

import shutil

from harness.programs import RECORDING, require

from .cures import cured
from .detection import asked, first_stood
from .frames import Recording
from .judge import is_right, judged
from .margins import faulty_margins
from .settings import beyond


def trial_check(trial, thresholds=()):
    """A check of a trial for the pool; the margins of these thresholds are measured on the way."""

    def check(programs):
        run = programs.new_run(trial.name)
        summary, gave_up = programs.try_to_train(*trial.arguments(), "--every", trial.case.every, "--run", run)
        require((run / RECORDING).exists(), f"nothing was recorded: {gave_up}")
        require(b"fault" not in (run / RECORDING).read_bytes(), "the recording knows of the fault")
        _, report = programs.check(run)
        outcome = judged(trial, report, _stood(programs, run, trial, report))
        if outcome["right"]:
            of_rule = [threshold for threshold in thresholds if threshold.code in trial.case.codes]
            outcome["margins"] = faulty_margins(programs, run, of_rule, is_right(trial))
        shutil.rmtree(run)
        loss = summary["loss"] if summary else None
        outcome["beyond"] = beyond(outcome["set"], programs.flags())
        if outcome["set"] and not outcome["beyond"]:
            outcome["cure"] = cured(programs, trial, outcome["set"], loss)
        return dict(outcome, loss=loss, gave_up=gave_up)

    return check


def _stood(programs, run, trial, report):
    if not any(is_right(trial)(finding) for finding in report["findings"]):
        return None
    stands = asked(programs, run / "cut", is_right(trial))
    return first_stood(Recording(run / RECORDING), trial.onset, stands)
