"""What becomes of a run that differs by nothing but rounding: its loss, and how far that moves. Trained once, kept beside the results."""

import functools
import hashlib
import json
import os
import threading

from .settings import without

# What the learning rate is moved by: FP16 rounds by up to 2^-11, and what a run makes of a rounding no change of the recipe explains. Three runs
# of each seed, or layer, are enough for most rows; five for those in which three leave a difference, for the spread of three is little known.
HAIRS = (0.0, 2.0**-11, -(2.0**-11))
MORE_HAIRS = (*HAIRS, 2.0**-10, -(2.0**-10))
# BF16 rounds by up to 2^-8.
MORE_HAIRS_OF_BF16 = tuple(4 * hair for hair in MORE_HAIRS)

_locks = {}
_guard = threading.Lock()


def more_hairs(arguments):
    """What the learning rate of a run with these arguments is moved by: as much as its format rounds."""
    in_bf16 = any(str(argument).startswith("bf16") for argument in arguments)
    return MORE_HAIRS_OF_BF16 if in_bf16 else MORE_HAIRS


def losses(programs, arguments, hairs=HAIRS):
    """The losses of the run with these arguments, its learning rate moved by these hairs, in this order; as the summary has them."""
    arguments = tuple(str(argument) for argument in arguments)
    path = _path(programs, arguments)
    with _lock(path):
        kept = _kept(path)
        for hair in hairs:
            if str(hair) not in kept["losses"]:
                _train(programs, arguments, hair, kept)
                _keep(path, dict(kept, arguments=arguments))
    return [kept["losses"][str(hair)] for hair in hairs]


def _train(programs, arguments, hair, kept):
    """Trains once more; the first run tells the learning rate that the others move."""
    moved = (*without(arguments, "--lr"), "--lr", kept["lr"] * (1 + hair)) if hair else arguments
    summary = programs.train(*moved, "--no-doctor")
    kept.setdefault("lr", summary["lr"])
    kept["losses"][str(hair)] = summary["loss"]


def _kept(path):
    try:
        kept = json.loads(path.read_text())
        return {"lr": kept["lr"], "losses": kept["losses"]}
    except (OSError, ValueError, KeyError):
        return {"losses": {}}


def _keep(path, what):
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(what, indent=1) + "\n")
    os.replace(aside, path)


def _path(programs, arguments):
    digest = hashlib.sha256(repr((_trainer(programs.trainer), arguments)).encode()).hexdigest()
    return programs.runs.parent / "references" / f"{digest[:24]}.json"


@functools.cache
def _trainer(path):
    """The doctor has no part in these runs: with another one they are what they were."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _lock(path):
    """Runs side by side that need the same reference wait for the first that trains it."""
    with _guard:
        return _locks.setdefault(path, threading.Lock())

