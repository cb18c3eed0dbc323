"""What FP32 copies are for: with them a model in 16 bits ends where FP32 ends, without them it does not."""

import math
import shutil
import statistics

from harness.programs import require
from harness.runs import everything, listed, settings

WITHIN = 0.01
# Two runs of one seed part by chance as they learn; a rate that falls to zero and a mean over seeds leave 0.3 % of that.
PAIRS = {"mlp": (300, 12), "conv": (150, 12), "transformer": (150, 3)}
# A rate at which most updates are smaller than half a unit in the last place of an FP16 weight.
LOW_RATE = ("--lr", "0.0001")
LOW_STEPS = {"mlp": 400, "conv": 300, "transformer": 150}


def as_good_as_fp32(model, precision):
    """The mean over seeds of the loss against FP32's, each pair with one seed and the last 50 steps, is within 1 %."""
    steps, seeds = PAIRS[model]

    def check(programs):
        ratios = []
        for seed in range(seeds):
            pair = [
                _loss(programs, *settings(model, kind, "adam", seed, steps), "--schedule", "cosine")
                for kind in ("fp32", precision)
            ]
            ratios.append(pair[1] / pair[0])
        mean = statistics.geometric_mean(ratios)
        spread = statistics.stdev(ratios) / math.sqrt(seeds)
        require(abs(mean - 1) < WITHIN, f"{mean:.4f} times FP32's loss (standard error {spread:.4f})")
        return {"ratio": mean, "standard_error": spread}

    return check


def lost_without(name, model, pure, masters, seed):
    """At a low rate the copies keep up with FP32, the model alone does not, and the doctor says why."""
    steps = LOW_STEPS[model]

    def check(programs):
        def low(precision):
            return (*settings(model, precision, "sgd", seed, steps), *LOW_RATE)

        fp32, kept = _loss(programs, *low("fp32")), _loss(programs, *low(masters))
        require(abs(kept / fp32 - 1) < WITHIN, f"{masters} ends at {kept:.4f}, FP32 at {fp32:.4f}")
        run = programs.new_run(name)
        lost = float(programs.train(*low(pure), "--run", run)["loss"])
        require(abs(lost / fp32 - 1) > WITHIN, f"{pure} ends at {lost:.4f}, FP32 at {fp32:.4f}: no harm was done")
        _, report = programs.check(run)
        found = [finding["code"] for finding in everything(report["findings"])]
        require("AMP401" in found, f"no AMP401, but: {listed(report['findings'])}")
        shutil.rmtree(run)
        return {"with_copies": kept / fp32, "without": lost / fp32}

    return check


def _loss(programs, *arguments):
    return float(programs.train(*arguments, "--no-doctor")["loss"])
