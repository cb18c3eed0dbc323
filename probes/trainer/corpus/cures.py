"""The loop is closed: the settings that a remedy names are set, the run is trained again, and the finding has to be gone."""

import shutil

from harness.runs import brief

from .cases import REPLACES
from .judge import counts, is_right

# The trainer's flags for the settings that remedies name.
FLAGS = {
    "init_scale": "--init-scale",
    "static_scale": "--static-scale",
    "min_scale": "--min-scale",
    "max_scale": "--max-scale",
    "growth_interval": "--growth-interval",
    "lr": "--lr",
    "clip": "--clip",
    "eps": "--eps",
    "precision": "--precision",
    "fp32_layers": "--fp32-layers",
    "optimizer": "--optimizer",
}
# A dynamic scaler is what the trainer has where no static scale is set.
DYNAMIC = ("scaler", "dynamic")


def beyond(settings, flags):
    """The settings among these that the trainer has not: what needs a change of the code cannot be tried."""
    known = {name for name, flag in FLAGS.items() if flag in flags}
    return sorted(name for name, value in settings.items() if name not in known and (name, value) != DYNAMIC)


def cured(programs, trial, settings, faulty_loss):
    """The run with the remedy in place: what is still found, and its loss beside FP32's and the faulty run's; all of one seed."""
    run = programs.new_run(f"{trial.name}-cured")
    arguments = applied(_treated(trial), settings)
    summary, gave_up = programs.try_to_train(*arguments, "--every", trial.case.every, "--run", run)
    if summary is None:
        return {"gone": False, "left": [f"the trainer gave up: {gave_up}"]}
    _, report = programs.check(run)
    shutil.rmtree(run)
    left = [finding for finding in report["findings"] if counts(finding, trial.case.codes)]
    fp32 = programs.train_unwatched(*without(applied(trial.base(), {"precision": "fp32", "scaler": "dynamic"}), "--shadow-every"))
    return {
        "gone": not any(is_right(trial)(finding) for finding in left),
        "left": [brief(finding) for finding in left],
        "loss": summary["loss"],
        "fp32_loss": fp32["loss"],
        "faulty_loss": faulty_loss,
    }


def _treated(trial):
    """The arguments that the remedy is applied to: without the fault where the setting that it replaces is the fault."""
    if trial.case.cure == REPLACES and trial.case.fault:
        return (*trial.base(), *trial.case.arguments)
    return trial.arguments()


def applied(arguments, settings):
    """The arguments with the settings in place of those that they set otherwise."""
    changed = list(arguments)
    if settings.get("scaler") == "dynamic" or "init_scale" in settings:
        changed = without(changed, "--static-scale")
    for name, value in settings.items():
        if name in FLAGS:
            changed = without(changed, FLAGS[name]) + [FLAGS[name], value]
    return tuple(changed)


def without(arguments, flag):
    """The arguments without a flag and its value."""
    if flag not in arguments:
        return arguments
    at = arguments.index(flag)
    return without(arguments[:at] + arguments[at + 2 :], flag)
