"""Runs that are well: whatever the doctor says of them is a false alarm."""

import shutil
from itertools import product

from harness.pool import Item
from harness.runs import CONVERGENCE, MODELS, OPTIMIZERS, PRECISIONS, brief, settings

from .judge import counts
from .margins import healthy_margins

# How a run is watched: every step, and as the library does unless told otherwise.
WATCHED = {"every-1": ("--every", 1), "budget": ("--budget", "2%")}
# Above this share of skipped steps a scaler that thrashes is a right finding.
SKIPS_ALLOWED = 0.02
# What real loops do besides, where it is no finding; each to convergence of the mlp, the others shorter.
VARIANTS = {
    "accumulate": ("--accumulate", 4, "--batch", 16),
    "clip": ("--clip", 1),
    "schedule": ("--schedule", "warmup-cosine"),
    "evaluate": ("--eval-every", 10),
    "calibration": ("--init-scale", 2**24),
    "probing": ("--growth-interval", 100),
    "static": ("--static-scale", 1024),
    "one-by-one": ("--batch", 1, "--lr", "0.0005"),
}
# Precisions in which the margins of the thresholds are measured, each by some hundred verdicts; those on a long recording take a second.
MEASURED = {"mlp": PRECISIONS, "conv": ("fp16", "fp16-masters"), "transformer": ("fp16", "fp16-masters")}
# Plants that are no faults, by model: the layer has one before it that they silence. The transformer's masks of -inf and its head that is tied
# to its embedding, the units at zero of the others, and what has converged need no plant.
HARMLESS = {
    "mlp": ("dropout:fc1", "dropout:fc2", "frozen:fc1", "zero-bias@0:fc3", "two-optimizers", "average", "quick-average"),
    "conv": ("dropout:fc1", "frozen:bn1", "zero-bias@0:fc2", "two-optimizers", "average", "quick-average"),
    "transformer": (
        *("dropout:block.0.mlp.up", "frozen:block.0.mlp.down", "closed-gate@5:block.0.mlp.down", "closed-gate@5:block.1.attn.out"),
        *("frozen-head@0", "two-optimizers"),
    ),
}
# FP32 copies are stepped by one optimizer.
UNLIKE_MASTERS = ("two-optimizers",)
VARIANT_STEPS = {"mlp": 500, "conv": 250, "transformer": 120}


def healthy_items(seeds, flags, faults, thresholds=()):
    """The healthy set: to convergence in every model, optimizer and precision, then the variants; each watched in both ways.

    The margins of the thresholds are measured on some runs of the first seed with Adam that are watched at every step.
    """
    for model, precision, seed in product(MODELS, PRECISIONS, seeds[:2]):
        for optimizer in OPTIMIZERS[model]:
            steps, loss, extra = CONVERGENCE[model]
            arguments = (*settings(model, precision, optimizer, seed, steps), *extra)
            is_measured = (optimizer, seed) == ("adam", seeds[0]) and precision in MEASURED[model]
            measured = thresholds if is_measured else ()
            yield from _watched("converged", f"{model}-{precision}-{optimizer}-{seed}", arguments, loss, measured)
    for model, precision, (what, extra) in product(MODELS, ("fp16", "fp16-masters"), VARIANTS.items()):
        if extra[0] in flags:
            arguments = (*settings(model, precision, "adam", seeds[-1], VARIANT_STEPS[model]), *extra)
            yield from _watched("variant", f"{model}-{precision}-{what}", arguments, None, ())
    for model, precision in product(MODELS, ("fp32", "bf16", "fp16", "fp16-masters")):
        for plant in HARMLESS[model]:
            if _is_possible(plant, precision, faults):
                arguments = (*settings(model, precision, "adam", seeds[-1], VARIANT_STEPS[model]), "--fault", plant)
                name = f"{model}-{precision}-{plant.replace('@', '-').replace(':', '-')}"
                yield from _watched("harmless", name, arguments, None, ())


def _is_possible(plant, precision, faults):
    name = plant.split("@")[0].split(":")[0]
    return name in faults and not (name in UNLIKE_MASTERS and precision.endswith("masters"))


def _watched(group, name, arguments, loss, thresholds):
    for way, how in WATCHED.items():
        of_way = f"{group}-{name}-{way}"
        measured = thresholds if way == "every-1" else ()
        check = _check(group, of_way, arguments + how, way, loss, measured)
        yield Item(group, of_way, check, repr((arguments, how, len(measured))))


def _check(group, name, arguments, way, loss_below, thresholds):
    def check(programs):
        run = programs.new_run(name)
        summary = programs.train(*arguments, "--run", run)
        _, report = programs.check(run)
        margins = healthy_margins(programs, run, thresholds)
        shutil.rmtree(run)
        found = [finding for finding in report["findings"] if counts(finding, ())]
        outcome = {
            "group": group,
            "way": way,
            "findings": [brief(finding) for finding in found],
            "remarks": sorted({finding["code"] for finding in report["findings"] if finding not in found}),
            "health": report["verdict"]["health"],
            "unsure": sorted({doubt["code"] for doubt in report["doubts"]}),
            "margins": margins,
            "loss": summary["loss"],
            "converged": loss_below is None or float(summary["loss"]) < loss_below,
            "skipped": summary["skips"] / summary["steps"],
        }
        return dict(outcome, right=not found, said="; ".join(outcome["findings"]) or "silent")

    return check
