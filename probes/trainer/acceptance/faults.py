"""Planted faults: found by the right code, at the right layer, soon, and nothing before."""

import shutil
from typing import NamedTuple

from harness.programs import RECORDING, require
from harness.runs import CEILING, brief, doubts, everything, listed, settings

# Where a fault comes in the middle of a run, and how long a run goes on with it.
FAULT_STEP = {"mlp": 100, "conv": 100, "transformer": 40}
STEPS = {"mlp": 200, "conv": 200, "transformer": 100}
# A value that is wrong is found at once; a scale that behaves wrongly, within a few of its intervals.
ONSET_WITHIN = 10
INTERVALS = 3


class Fault(NamedTuple):
    """A fault as it is planted: into which runs, and what must be said of it."""

    name: str
    codes: tuple
    precision: str
    steps: dict = STEPS
    arguments: tuple = ()
    # Whether it begins with the loss scale at its ceiling.
    at_ceiling: bool = False
    # A setting holds from the first step; other faults come in the middle.
    setting: bool = False
    within: int = ONSET_WITHIN
    optimizer: str = "adam"


# Faults of one layer.
IN_LAYERS = {"underflow": "AMP201", "overflow": "AMP102", "nan": "AMP501"}

# A dozen skips, of which the interval brings one every eleven steps.
MANY_SKIPS = {"mlp": 300, "conv": 300, "transformer": 240}
# Twenty bad batches must come before it is told apart from bad luck: 5 % of so many steps are more.
LONG = {"mlp": 800, "conv": 600, "transformer": 600}
IN_RUN = (
    Fault("underflow", ("AMP201", "AMP307"), "fp16"),
    Fault("short-interval", ("AMP301",), "fp16", MANY_SKIPS, at_ceiling=True, within=INTERVALS * 10),
    Fault("short-interval", ("AMP301",), "fp16-masters", MANY_SKIPS, at_ceiling=True, within=INTERVALS * 10),
    Fault("bad-batches=0.05", ("AMP302",), "fp16", LONG, ("--growth-interval", 100), setting=True, within=INTERVALS * 100),
    Fault("bad-batches=0.05", ("AMP302",), "fp16-masters", LONG, setting=True, within=INTERVALS * 2000),
    Fault("scale-low", ("AMP307", "AMP201"), "fp16", setting=True),
    Fault("scale-low", ("AMP307", "AMP201"), "fp16-masters", setting=True),
    Fault("scale-high", ("AMP307",), "fp16", setting=True),
    Fault("scale-high", ("AMP307",), "fp16-masters", setting=True),
    Fault("no-scaler", ("AMP308",), "fp16", setting=True),
    Fault("dead-updates", ("AMP401",), "fp16-pure", setting=True, optimizer="sgd"),
    Fault("dead-updates", ("AMP401",), "bf16-pure", setting=True, optimizer="sgd"),
    Fault("lost-decay", ("AMP404",), "bf16-pure", setting=True, optimizer="adamw"),
    Fault("vanishing-eps", ("AMP407",), "fp16-pure", setting=True),
    Fault("lr-high", ("AMP403",), "fp16"),
    Fault("lr-high", ("AMP403",), "fp32"),
    Fault("lr-high=30", ("AMP403",), "bf16-masters"),
    Fault("model-changed", ("AMP405",), "fp16-masters"),
    Fault("model-changed", ("AMP405",), "bf16-masters"),
    Fault("masters-unused", ("AMP405",), "bf16-masters"),
    Fault("masters-bypassed", ("AMP405",), "bf16-masters"),
    Fault("masters-unwritten", ("AMP405",), "fp16-masters"),
    Fault("masters-unwritten", ("AMP405",), "bf16-masters"),
)


def in_layer(name, fault, model, layer, seed, precision="fp16"):
    """A fault in a layer is found in that layer."""
    return _check(name, Fault(fault, (IN_LAYERS[fault],), precision), model, seed, layer)


def in_run(name, fault, model, seed):
    """A fault of the whole run is found."""
    return _check(name, fault, model, seed, None)


def _check(name, fault, model, seed, layer):
    step = 0 if fault.setting else FAULT_STEP[model]

    def check(programs):
        run = programs.new_run(name)
        planted = f"{fault.name}@{step}" + (f":{layer}" if layer else "")
        arguments = settings(model, fault.precision, fault.optimizer, seed, fault.steps[model]) + fault.arguments
        if fault.at_ceiling:
            arguments += ("--init-scale", CEILING[model])
        programs.train(*arguments, "--run", run, "--fault", planted)
        require(b"fault" not in (run / RECORDING).read_bytes(), "the recording knows of the fault")
        status, report = programs.check(run)
        require(status == 1, f"check ended with {status}, not 1; doubts: {doubts(report)}")
        result = judge(report["findings"], fault.codes, layer, step, fault.within)
        shutil.rmtree(run)
        return result

    return check


def judge(findings, codes, layer, step, within):
    """What was found of a fault of `step` on; `Unmet` unless it is one of the codes, at the layer if there is one, in time."""
    told = everything(findings)
    early = [finding for finding in told if finding["onset_step"] < step]
    require(not early, f"found before the fault was planted: {listed(early)}")
    named = [finding for finding in told if finding["code"] in codes]
    right = [finding for finding in named if layer is None or finding["layer"] == layer]
    wanted = " or ".join(codes)
    require(right, f"no {wanted} at {layer or 'any layer'}, but: {listed(findings)}")
    late = min(finding["onset_step"] for finding in right) - step
    require(late <= within, f"{wanted} only {late} steps after the fault was planted")
    blamed = named[0]["layer"]
    require(layer is None or blamed == layer, f"{brief(named[0])} comes before {layer}: {listed(findings)}")
    return {"late": late, "findings": len(findings)}
