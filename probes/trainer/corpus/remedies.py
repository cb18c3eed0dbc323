"""The page's part on remedies: whether the finding is gone, and the loss beside FP32's, with what FP32 itself makes of a rounding."""

import math
import statistics

from .tables import table

# A loss this near to FP32's is FP32's.
CLOSE = 0.01
# Standard deviations of the noise from which on a difference is one.
SIGMAS = 3.0

INTRODUCTION = """\
The settings that the remedy names are set and the run is trained again, with the same seed: a fault that is a setting is then gone,
and one that lies in the model or in the data stays. *Gone*: of so many runs the finding is gone. Losses are means of the last 50
steps, held against FP32's of the same seed, with the same fault where it is one in FP32 too; the ratio is the geometric mean over
the runs. A step that the scaler skipped is left out of FP32's run too; *skipped* is their share.

Training is chaotic: a rounding at the first step moves the loss at the last. So each FP32 run is trained three times, its learning rate
moved by 2^-11, as much as FP16 rounds, and the loss is held against the mean of these. Where that leaves more than 1 %, both the run
with the remedy and FP32's are trained five times, moved by up to 2^-10 (a run in BF16 by up to 2^-8, as much as that rounds), and their
means are compared. *Noise* is what the spread of these runs lets the ratio differ by (one standard deviation); it averages out over
seeds, not over the layers of one. A difference of up to {sigmas:g} of it is seed noise, a larger one differs.

A moved learning rate leaves a run near where it was, and rounding at every step does not. Where more than 1 % is left all the same,
healthy runs of the kind (without any fault, in the format of the remedy) are held against FP32's on the seeds 1 to 5, and where these
ratios spread wider than the moved runs do, their spread is the noise; they stand below the table."""


def remedies(results):
    """A row a case and model: the settings printed, whether the finding went, and the loss beside FP32's, over the seeds."""
    groups = {}
    for result in results.values():
        if "cure" in result:
            groups.setdefault((result["case"], result["model"]), []).append(result)
    rows = [(f"`{case}`", model, *_row(of)) for (case, model), of in groups.items()]
    if not rows:
        return "No remedy that was printed names a setting of the trainer."
    head = ("case", "model", "printed", "gone", "skipped", "loss / FP32's, faulty", "with the remedy", "noise", "")
    return INTRODUCTION.format(sigmas=SIGMAS) + "\n\n" + table(head, rows) + _healthy(results)


def _healthy(results):
    """The healthy pairs that were asked for, a row a kind of run."""
    kinds = {}
    for result in results.values():
        pairs = result.get("cure", {}).get("healthy")
        if pairs:
            # Runs of other lengths and surroundings are other kinds.
            row = (result["model"], pairs["optimizer"], pairs["precision"], *map(_ratio, pairs["ratios"]), _percent(_spread(pairs["ratios"])))
            kinds[row] = None
    if not kinds:
        return ""
    count = max(len(row) for row in kinds) - 4
    head = ("model", "optimizer", "precision", *(f"seed {n}" for n in range(1, count + 1)), "spread")
    return "\n\nThe loss of healthy runs over that of FP32 with the same seed:\n\n" + table(head, sorted(kinds))


def _ratio(ratio):
    return f"{ratio:.3f}" if math.isfinite(ratio) else "not finite"


def _spread(ratios):
    """The standard deviation of the logarithms."""
    logs = _logs(ratios)
    return statistics.stdev(logs) if all(map(math.isfinite, logs)) else math.nan


def _row(of):
    printed = sorted({", ".join(f"{name} {_value(value)}" for name, value in result["set"].items()) for result in of})
    said = "; ".join(printed[:2]) + ("; ..." if len(printed) > 2 else "")
    cures = [result["cure"] for result in of]
    gone = f"{sum(cure['gone'] for cure in cures)}/{len(cures)}"
    trained = [cure for cure in cures if "fp32_losses" in cure]
    faulty, treated = log_ratio(trained, _of_the_fault), log_ratio(trained)
    noise = noise_of(trained)
    fp32_ends = all(math.isfinite(_level(cure)) for cure in trained)
    judged = verdict(treated, noise) if fp32_ends else "FP32's is not finite either"
    return said, gone, _share(trained), _times(faulty), _times(treated), _percent(noise), judged


def is_close(losses, fp32_losses):
    """Whether the mean of the losses is FP32's, and so whether more runs are of use: of what is no number none is."""
    difference = _mean_log(losses) - _mean_log(fp32_losses)
    return not math.isfinite(difference) or _is_within(difference)


def _of_the_fault(cure):
    return [cure["faulty_loss"]]


def _with_the_remedy(cure):
    return cure["losses"]


def log_ratio(cures, chosen=_with_the_remedy):
    """The mean logarithm of a loss over FP32's; NaN where one is no number."""
    return statistics.fmean(_mean_log(chosen(cure)) - _level(cure) for cure in cures) if cures else math.nan


def noise_of(cures):
    """The standard deviation of `log_ratio`, were nothing but rounding in it: of the mean of each run's losses, and of that which it is held against.

    Runs of one seed, as of a fault in several layers, go nearly the same way: their noise adds up, and only that of seeds averages out.
    """
    if not cures:
        return math.nan
    of_seed = {}
    for cure in cures:
        of_seed[cure["seed"]] = of_seed.get(cure["seed"], 0.0) + _deviation(cure)
    return math.hypot(*of_seed.values()) / len(cures)


def _deviation(cure):
    """Of the difference of two means; a run that was trained once spreads as FP32's do, and one that healthy runs are known of at least as these."""
    own, fp32 = _logs(cure["losses"]), _logs(cure["fp32_losses"])
    if not all(map(math.isfinite, own + fp32)):
        return math.nan
    of_fp32 = statistics.stdev(fp32)
    of_own = statistics.stdev(own) if len(own) > 1 else of_fp32
    of_moved = math.hypot(of_own / math.sqrt(len(own)), of_fp32 / math.sqrt(len(fp32)))
    healthy = cure.get("healthy")
    return max(of_moved, _spread(healthy["ratios"])) if healthy else of_moved


def verdict(ratio, noise):
    """What a ratio of losses, as a logarithm, means beside the noise."""
    if not math.isfinite(ratio):
        return "not finite"
    if _is_within(ratio):
        return "within 1 %"
    sigmas = abs(ratio) / noise if noise > 0 else math.inf
    return f"{'within seed noise' if sigmas <= SIGMAS else 'differs'} ({sigmas:.1f} sigma)"


def _is_within(difference):
    return abs(math.expm1(difference)) <= CLOSE


def _level(cure):
    return _mean_log(cure["fp32_losses"])


def _mean_log(losses):
    return statistics.fmean(_logs(losses))


def _logs(losses):
    return [_log(loss) for loss in losses]


def _log(loss):
    number = math.nan if loss is None else float(loss)
    return math.log(number) if math.isfinite(number) and number > 0 else math.nan


def _share(cures):
    steps = sum(cure["steps"] for cure in cures)
    return f"{100 * sum(cure['skips'] for cure in cures) / steps:.1f} %" if steps else "no run"


def _times(ratio):
    return f"{math.exp(ratio):.4g}" if math.isfinite(ratio) else "not finite"


def _percent(noise):
    return f"± {100 * noise:.1f} %" if math.isfinite(noise) else "not finite"


def _value(value):
    """A power of two as such; other numbers in few digits."""
    if isinstance(value, (int, float)) and value > 0 and math.log2(value).is_integer() and (value >= 1024 or value < 1):
        return f"2^{int(math.log2(value))}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
