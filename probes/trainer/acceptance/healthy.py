"""Runs that are well: the doctor says nothing."""

import shutil

from harness.programs import require
from harness.runs import CONVERGENCE, doubts, listed, settings

# Examples one by one give gradients of which every one is different; a lower rate than with 64, or nothing is learned.
SINGLES = {"mlp": 3000, "conv": 3000, "transformer": 1000}
SINGLES_RATE = "0.0005"
# Above this share of skipped steps a scaler that thrashes is a right finding.
SKIPS_ALLOWED = 0.02


def healthy(name, model, precision, optimizer, seed):
    """A run to convergence gives no finding, whatever its severity."""
    steps, loss, extra = CONVERGENCE[model]

    def check(programs):
        run = programs.new_run(name)
        summary = programs.train(*settings(model, precision, optimizer, seed, steps), *extra, "--run", run)
        require(_number(summary["loss"]) < loss, f"not converged: a loss of {summary['loss']}, not below {loss}")
        _silent(programs, run)
        return {f"loss_{model}": summary["loss"]}

    return check


def variant(name, model, precision, arguments, steps):
    """A run with what real loops do besides gives no finding."""

    def check(programs):
        run = programs.new_run(name)
        programs.train(*settings(model, precision, "adam", 0, steps), *arguments, "--run", run)
        _silent(programs, run)
        return {}

    return check


def singles(name, model, precision, seed):
    """Batches of one example, under the scaler's defaults: no finding, unless skips exceed 2 %."""

    def check(programs):
        run = programs.new_run(name)
        steps = SINGLES[model]
        summary = programs.train(
            *settings(model, precision, "adam", seed, steps), "--batch", 1, "--lr", SINGLES_RATE, "--run", run
        )
        skipped = summary["skips"] / steps
        if skipped <= SKIPS_ALLOWED:
            _silent(programs, run)
        return {"skipped": skipped}

    return check


def _silent(programs, run):
    status, report = programs.check(run)
    require(not report["findings"], f"findings in a healthy run: {listed(report['findings'])}")
    require(status == 0, f"check ended with {status}; doubts: {doubts(report)}")
    shutil.rmtree(run)


def _number(value):
    """A number of a summary; NaN and infinities are words there."""
    return float(value)
