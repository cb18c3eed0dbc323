"""What-if against the truth: shares that were predicted at one loss scale and counted at another, and training inside and outside of the window.

Two runs of one seed have the same weights until their scales differ: the gradients of that step differ by the scale alone. So a run at one scale
foretells what is counted in another.
"""

import math
import shutil
import statistics
from itertools import product

from harness.pool import Item
from harness.programs import RECORDING, require
from harness.runs import settings

from .frames import Recording
from .tables import table

MODELS = ("mlp", "conv", "transformer")
# Where nothing is lost and nothing overflows: from here the other scales are foretold.
FROM = 14
# The last lie below the window: there what one layer loses changes what the next is given, and what-if marks the shares that are bounds for that reason.
TO = (11, 8, 6, 4, 2, 18, 20, 22, -2, -5, -8)
# A step of a run that has learned: its gradients are smaller than those of the first.
LATER = 30
# FP16's smallest normal number, as an exponent.
SMALLEST_NORMAL = -14
HALF_A_POINT = 0.005
# Far below the window the direction itself is lost, and with it what a bound stands on.
BOUNDS_HOLD_TO = 0.01
# What is compared: the shares, and by how much those that are bounds are passed.
WHAT = ("fading", "lost", "overflow", "bound")
# How long the models train to be compared, and the optimizer; a rate that falls to zero leaves little of what parts two runs by chance.
STEPS = {"mlp": 300, "conv": 150, "transformer": 150}
# Harm began 5 to 12 octaves below the window, and 2 to 4 above.
BELOW, ABOVE = 12, 4
WITHIN = 0.01
# The mean of a ratio over seeds may be off by chance: by so many of its standard errors.
SPREAD = 2


def whatif_items(seeds):
    """The checks of what-if."""
    for model, seed in product(MODELS, seeds[:2]):
        name = f"whatif-shares-{model}-{seed}"
        yield Item("whatif", name, _shares(name, model, seed))
    for model in MODELS:
        name = f"whatif-window-{model}"
        yield Item("whatif", name, _window(name, model, seeds), repr(seeds))


def _shares(name, model, seed):
    def check(programs):
        pairs, errors = 0, {what: [] for what in WHAT}
        for step in (0, LATER):
            guess = _foretold(programs, name, model, seed, step)
            for exponent in TO:
                pairs += 1
                for what, error in _errors(guess, _counted(programs, name, model, seed, step, exponent), exponent):
                    errors[what].append(error)
        require(errors["fading"], "no tensor was compared")
        worst = {what: max(of, default=0.0) for what, of in errors.items()}
        told, bounded = len(errors["fading"]), len(errors["bound"])
        said = f"{told} tensors at {pairs} pairs of scales: " + ", ".join(f"{what} {_points(worst[what])}" for what in WHAT)
        right = all(worst[what] <= (BOUNDS_HOLD_TO if what == "bound" else HALF_A_POINT) for what in WHAT)
        return {"whatif": "shares", "model": model, "pairs": pairs, "tensors": told, "bounded": bounded, **worst, "right": right, "said": said}

    return check


def _foretold(programs, name, model, seed, step):
    """What-if of a run at one scale, of the gradients of one step."""
    run = _run(programs, name, model, seed, step, FROM)
    outlook = programs.whatif(run)
    shutil.rmtree(run)
    scales = outlook["scales"]
    return {
        (site["layer"], site["operator"], site["probe"]): (site, scales)
        for site in (dict(site, layer=layer["layer"]) for layer in outlook["layers"] for site in layer["sites"])
    }


def _counted(programs, name, model, seed, step, exponent):
    """The gradients of one step as FP16 held them at a scale, in the order of backward."""
    run = _run(programs, name, model, seed, step, exponent)
    sites = programs.report(run)["ranks"][0]["sites"]
    shutil.rmtree(run)
    return [site for site in sites if site["probe"] == "activation_grad" and site["dtype"] == "f16"]


def _run(programs, name, model, seed, step, exponent):
    """A run of which one step alone is scanned: the first at this scale, all before it at the one that foretells."""
    run = programs.new_run(f"{name}-{step}-{exponent}")
    arguments = [*settings(model, "fp16", "adam", seed, step + 1), "--static-scale", 2.0**FROM, "--run", run]
    if exponent != FROM:
        arguments += ["--fault", f"scale-low={2.0**exponent}@{step}"]
    programs.train(*arguments, "--every", 1)
    if step:
        _keep_last(run, step)
    return run


def _keep_last(run, step):
    """Leaves of the recording only this step."""
    path = run / RECORDING
    path.write_bytes(Recording(path).only(step))


def _errors(guess, counted, exponent):
    """How far what was foretold lies from what was counted, tensor by tensor, up to the first that is not finite: behind it infinities are passed on. Of shares
    that are said to be bounds, how far what was counted lies beyond them."""
    for site in counted:
        found = guess.get((site["layer"], site["operator"], site["probe"]))
        if not found:
            continue
        before, scales = found
        at, nonzero = scales.index(exponent), before["nonzero"]
        said = {share: before["at"][f"{share}_share"][at] for share in ("fading", "lost", "overflow")}
        yield "overflow", abs(said["overflow"] - (site["inf"] + site["nan"]) / nonzero)
        if site["inf"] or site["nan"]:
            return
        fading, lost = _subnormal(site) / nonzero, 1 - (site["count"] - site["zeros"]) / nonzero
        if before["at"]["inherits_loss"][at]:
            yield "bound", max(fading - said["fading"], said["lost"] - lost, 0.0)
        else:
            yield "fading", abs(said["fading"] - fading)
            yield "lost", abs(said["lost"] - lost)


def _subnormal(site):
    first, counts = site["exponents"]["first"], site["exponents"]["counts"]
    return sum(n for place, n in enumerate(counts) if first + place < SMALLEST_NORMAL)


def _window(name, model, seeds):
    def check(programs):
        windows, ratios = [], {}
        for seed in seeds:
            base = settings(model, "fp32", "adam", seed, STEPS[model])
            run = programs.new_run(f"{name}-{seed}")
            fp32 = float(programs.train(*base, "--schedule", "cosine", "--every", 5, "--run", run)["loss"])
            window = programs.whatif(run)["window"]
            shutil.rmtree(run)
            require(window and not window["is_empty"], f"no window: {window}")
            windows.append(window)
            for place, exponent in _places(window).items():
                fp16 = settings(model, "fp16", "adam", seed, STEPS[model])
                summary, _ = programs.try_to_train(*fp16, "--schedule", "cosine", "--static-scale", 2.0**exponent, "--no-doctor")
                loss = float(summary["loss"]) if summary else math.inf
                ratios.setdefault(place, []).append(loss / fp32 if math.isfinite(loss) else math.inf)
        means = {place: _mean(of) for place, of in ratios.items()}
        inside = [_matches(ratios[place]) for place in means if place not in ("below", "above")]
        outside = [not _matches(ratios[place]) for place in ("below", "above")]
        text = ", ".join(f"{place} {mean:.3f}x" for place, mean in means.items())
        return {
            "whatif": "window",
            "model": model,
            "windows": [[window["low"], window["recommended"], window["high"]] for window in windows],
            "ratios": means,
            "right": all(inside) and all(outside),
            "said": text,
        }

    return check


def _places(window):
    """The scales that are tried, by where they lie."""
    low, high = window["low"], window["high"]
    return {
        "below": low - BELOW,
        "low": low,
        "middle": (low + high) // 2,
        "recommended": window["recommended"],
        "high": high,
        "above": high + ABOVE,
    }


def _mean(ratios):
    return statistics.geometric_mean(ratios) if all(math.isfinite(ratio) for ratio in ratios) else math.inf


def _matches(ratios):
    """Whether the mean loss over seeds is FP32's: within 1 %, or within what chance leaves of it where that is more."""
    mean = _mean(ratios)
    if not math.isfinite(mean):
        return False
    logs = [math.log(ratio) for ratio in ratios]
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return abs(math.log(mean)) <= max(math.log1p(WITHIN), SPREAD * error)


def _points(share):
    return f"{100 * share:.2f} points"


def section(results):
    """The part of the page."""
    done = [result for result in results.values() if "whatif" in result]
    shares = [
        (r["model"], r["pairs"], r["tensors"], *(_points(r[what]) for what in ("fading", "lost", "overflow")), r["bounded"], _points(r["bound"]))
        for r in done
        if r["whatif"] == "shares"
    ]
    windows = [_window_row(r) for r in done if r["whatif"] == "window"]
    if not done:
        return ""
    return "\n\n".join(
        [
            "## What-if against the truth",
            f"Shares of FP16 gradients at other loss scales, foretold from a recording at 2^{FROM} and counted in a run of the same seed that goes to the other "
            f"scale at its first step or at step {LATER}: the largest difference over all tensors. Below the window, what one layer loses changes what the next is given, which its "
            "own histogram cannot foretell: what-if says of those that at least as much is lost and at most as much fades, and by how much what was counted passes these bounds "
            "is shown.",
            table(("model", "pairs of scales", "tensors", "fading off by", "lost off by", "overflowing off by", "bounded", "bounds passed by"), shares),
            f"Loss over FP32's, the mean of the last 50 steps of the same seed, over seeds: at static scales inside the window that the FP32 run's what-if gives, 2^{BELOW} "
            f"below it and 2^{ABOVE} above it.",
            table(("model", "windows", "below", "low", "middle", "recommended", "high", "above"), windows),
        ]
    )


def _window_row(result):
    lows, highs = [w[0] for w in result["windows"]], [w[2] for w in result["windows"]]
    ratios = [f"{result['ratios'][place]:.3f}" for place in ("below", "low", "middle", "recommended", "high", "above")]
    return (result["model"], f"2^{min(lows)}..{max(lows)} to 2^{min(highs)}..{max(highs)}", *ratios)
