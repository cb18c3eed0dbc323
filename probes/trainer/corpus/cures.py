"""The loop is closed: the settings that a remedy names are set, the run is trained again, and the finding has to be gone."""

import math
import shutil

from harness.runs import brief

from .cases import LOST, REPLACES
from .judge import counts, is_right
from .references import HAIRS, losses, more_hairs
from .remedies import is_close
from .settings import OF_THE_DOCTOR, OF_THE_SCALE, applied, without

# Settings that are no matter of precision hold in FP32 as well. Not the learning rate: one that is named too low would be hidden by it.
IN_FP32 = ("clip", "eps", "optimizer")
# Settings that make another run of a healthy one, and do not mend a fault alone.
OF_THE_KIND = ("precision", "optimizer")
# Healthy runs are compared on the seeds that thresholds are chosen on, so that no reported run is in its own measure.
OTHER_SEEDS = (1, 2, 3, 4, 5)
ONCE = HAIRS[:1]


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
    in_fp32 = reference(trial, settings, summary["skipped_steps"])
    own, fp32 = [summary["loss"]], losses(programs, in_fp32)
    healthy = None
    if not is_close(own, fp32):
        # Both sides are known better before anything is said of the difference, and what healthy runs differ by is known.
        own, fp32 = (losses(programs, each, more_hairs(each)) for each in (unwatched(arguments), in_fp32))
        healthy = None if is_close(own, fp32) else healthy_pairs(programs, trial, settings)
    return {
        "gone": not any(is_right(trial)(finding) for finding in left),
        "left": [brief(finding) for finding in left],
        "seed": trial.seed,
        "losses": own,
        "skips": summary["skips"],
        "steps": summary["steps"],
        "fp32_losses": fp32,
        "faulty_loss": faulty_loss,
        "healthy": healthy,
    }


def healthy_pairs(programs, trial, settings):
    """The loss of a run without any fault over that of FP32, on seeds that are not reported: what the format itself, and chance, make of a run like this."""
    kind = {name: value for name, value in settings.items() if name in OF_THE_KIND}
    ratios = []
    for seed in OTHER_SEEDS:
        base = unwatched(applied(trial._replace(seed=seed).base(), kind))
        in_fp32 = without(applied(base, {"precision": "fp32"}), *OF_THE_SCALE)
        (own,), (fp32,) = (losses(programs, each, ONCE) for each in (base, in_fp32))
        ratios.append(own / fp32 if _is_number(own) and _is_number(fp32) and fp32 > 0 else math.nan)
    precision, optimizer = (kind.get(name, getattr(trial, name)) for name in OF_THE_KIND)
    return {"precision": precision, "optimizer": optimizer, "ratios": ratios}


def _is_number(loss):
    return isinstance(loss, (int, float)) and math.isfinite(loss)


def _treated(trial):
    """The arguments that the remedy is applied to: without the fault where the settings are the fault, else with what it does besides settings."""
    if trial.case.cure == REPLACES or not trial.case.fault:
        return (*trial.base(), *trial.case.arguments)
    return (*trial.arguments(), "--keep-settings")


def reference(trial, settings, skipped=()):
    """The arguments of the FP32 run that the loss is held against: with the fault, as far as it is one in FP32 too, and without the steps that were skipped.
    """
    stays = trial.case.fault and trial.case.cure not in (REPLACES, LOST)
    skipped = [*skipped, trial.onset] if trial.case.cure == LOST else skipped
    faulty = ("--fault", trial.planted(), "--keep-settings") if stays else ()
    lasting = {name: value for name, value in settings.items() if name in IN_FP32}
    arguments = applied((*trial.base(), *trial.case.arguments, *faulty), {"precision": "fp32", **lasting})
    arguments = unwatched(without(arguments, *OF_THE_SCALE))
    return (*arguments, "--leave-out", ",".join(map(str, skipped))) if skipped else arguments


def unwatched(arguments):
    """The arguments of the same run without the doctor."""
    return without(arguments, *OF_THE_DOCTOR)
