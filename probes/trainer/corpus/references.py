"""What FP32 makes of a run: its loss, and how far that moves by nothing but rounding. Trained once, kept beside the results."""

import functools
import hashlib
import json
import os
import threading

from .settings import without

# What the learning rate is moved by: FP16 rounds by up to 2^-11, and what a run makes of a rounding no change of the recipe explains. Three
# runs of each seed, or layer, are enough for the noise of a row, and as many as there is time for.
HAIRS = (0.0, 2.0**-11, -(2.0**-11))

_locks = {}
_guard = threading.Lock()


def fp32_losses(programs, arguments):
    """The losses of the FP32 run with these arguments and of those that differ from it by a hair, in this order; as the summary has them."""
    arguments = tuple(str(argument) for argument in arguments)
    path = _path(programs, arguments)
    with _lock(path):
        try:
            return json.loads(path.read_text())["losses"]
        except (OSError, ValueError, KeyError):
            return _kept(path, arguments, _trained(programs, arguments))


def _trained(programs, arguments):
    first = programs.train(*arguments, "--no-doctor")
    moved = (first["lr"] * (1 + hair) for hair in HAIRS if hair)
    others = [programs.train(*without(arguments, "--lr"), "--lr", lr, "--no-doctor") for lr in moved]
    return [summary["loss"] for summary in (first, *others)]


def _kept(path, arguments, losses):
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps({"arguments": arguments, "losses": losses}, indent=1) + "\n")
    os.replace(aside, path)
    return losses


def _path(programs, arguments):
    digest = hashlib.sha256(repr((_trainer(programs.trainer), HAIRS, arguments)).encode()).hexdigest()
    return programs.runs.parent / "references" / f"{digest[:24]}.json"


@functools.cache
def _trainer(path):
    """The doctor has no part in these runs: with another one they are what they were."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _lock(path):
    """Runs side by side that need the same reference wait for the first that trains it."""
    with _guard:
        return _locks.setdefault(path, threading.Lock())

