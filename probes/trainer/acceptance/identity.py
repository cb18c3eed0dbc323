"""The doctor changes nothing."""

import shutil

from harness.programs import require
from harness.runs import settings

STEPS = {"mlp": 100, "conv": 100, "transformer": 30}
# What real loops do besides: each is run in every precision that has a scaler or FP32 copies.
EXTRAS = {
    "accumulate": ("--accumulate", 4, "--batch", 8),
    "clip": ("--clip", "0.1"),
    "schedule": ("--schedule", "warmup-cosine"),
    "evaluate": ("--eval-every", 7),
    "skips": ("--init-scale", 2**24, "--growth-interval", 5),
    "all": ("--accumulate", 2, "--batch", 1, "--clip", "0.5", "--schedule", "cosine", "--eval-every", 10),
}


def identity(name, model, precision, optimizer, extra=(), looks=()):
    """The same fingerprint with a doctor that looks at every step, and as `looks` says besides, and without one."""

    def check(programs):
        run = programs.new_run(name)
        arguments = (*settings(model, precision, optimizer, 0, STEPS[model]), *extra)
        watched = programs.train(*arguments, "--every", 1, *looks, "--run", run)
        alone = programs.train(*arguments, "--no-doctor")
        shutil.rmtree(run)
        require(
            watched["params_sha256"] == alone["params_sha256"],
            f"watched {watched['params_sha256'][:12]}, alone {alone['params_sha256'][:12]}",
        )
        return {"slower": watched["seconds"] / alone["seconds"]}

    return check
