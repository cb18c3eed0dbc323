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
TO = (11, 8, 6, 4, 2, 18, 20, 22)
# Below the window what one layer loses changes what the next is given, which no histogram of it foretells: shown, and not required.
BEYOND = (-2, -5)
# A step of a run that has learned: its gradients are smaller than those of the first.
LATER = 30
# FP16's smallest normal number, as an exponent.
SMALLEST_NORMAL = -14
HALF_A_POINT = 0.005
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
        worst, pairs, compared = {"fading": 0.0, "overflow": 0.0, "beyond": 0.0}, 0, 0
        for step in (0, LATER):
            guess = _foretold(programs, name, model, seed, step)
            for exponent in TO + BEYOND:
                counted = _counted(programs, name, model, seed, step, exponent)
                errors = list(_errors(guess, counted, exponent))
                if exponent in TO:
                    pairs, compared = pairs + 1, compared + len(errors)
                for what, error in errors:
                    what = "beyond" if exponent in BEYOND else what
                    worst[what] = max(worst[what], error)
        require(compared > 0, "no tensor was compared")
        right = max(worst["fading"], worst["overflow"]) <= HALF_A_POINT
        said = f"{compared} tensors at {pairs} pairs of scales: fading {_points(worst['fading'])}, overflow {_points(worst['overflow'])}"
        return {"whatif": "shares", "model": model, "pairs": pairs, "tensors": compared, **worst, "right": right, "said": said}

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
    """How far what was foretold lies from what was counted, tensor by tensor, up to the first that is not finite: behind it infinities are passed on."""
    for site in counted:
        found = guess.get((site["layer"], site["operator"], site["probe"]))
        if not found:
            continue
        before, scales = found
        at, nonzero = scales.index(exponent), before["nonzero"]
        yield "overflow", abs(before["at"]["overflow_share"][at] - (site["inf"] + site["nan"]) / nonzero)
        if site["inf"] or site["nan"]:
            return
        yield "fading", abs(before["at"]["fading_share"][at] - _subnormal(site) / nonzero)


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


def _powers(exponents):
    return " and ".join(f"2^{exponent}" for exponent in exponents)


def _points(share):
    return f"{100 * share:.2f} points"


def section(results):
    """The part of the page."""
    done = [result for result in results.values() if "whatif" in result]
    shares = [
        (r["model"], r["pairs"], r["tensors"], *(_points(r[what]) for what in ("fading", "overflow", "beyond")))
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
            f"scale at its first step or at step {LATER}: the largest difference over all tensors. Below the window, at {_powers(BEYOND)}, what one layer loses changes what the next "
            "is given, which its own histogram cannot foretell.",
            table(("model", "pairs of scales", "tensors compared", "fading off by", "overflowing off by", "fading off by, below the window"), shares),
            f"Loss over FP32's, the mean of the last 50 steps of the same seed, over seeds: at static scales inside the window that the FP32 run's what-if gives, 2^{BELOW} "
            f"below it and 2^{ABOVE} above it.",
            table(("model", "windows", "below", "low", "middle", "recommended", "high", "above"), windows),
        ]
    )


def _window_row(result):
    lows, highs = [w[0] for w in result["windows"]], [w[2] for w in result["windows"]]
    ratios = [f"{result['ratios'][place]:.3f}" for place in ("below", "low", "middle", "recommended", "high", "above")]
    return (result["model"], f"2^{min(lows)}..{max(lows)} to 2^{min(highs)}..{max(highs)}", *ratios)
