"""Small recordings of every case, for tests that need no LibTorch: `make fixtures` renews them.

Of each case a few short runs are tried, scanned at every step or seldom; the smallest that still shows the fault is kept, cut some steps
after its finding stood.
"""

import json
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.programs import RECORDING, TIMEOUT_SECONDS
from harness.runs import MIDDLE, MODELS, settings

from .detection import asked, first_stood
from .frames import Recording
from .judge import is_right, judged
from .trials import Trial

SEED = 6
# The step of the fault and how often it is scanned: the first are the smallest.
TRIED = ((8, 8), (4, 4), (6, 2), (6, 1), (None, 50), (None, 8), (None, 1))
# A recording of so many bytes is small enough: no other is tried.
SMALL = 16_000
# What is kept behind the step after which the finding stood.
STEPS_BEHIND = 2
# Runs that are well, of which nothing is to be said.
HEALTHY_STEPS, HEALTHY_EVERY = 24, 6
HEALTHY = ("fp32", "bf16", "fp16", "fp16-masters", "bf16-masters")
# What looks like a fault besides, in FP16.
HARMLESS = ("two-optimizers", "zero-bias@0:fc3")


def renew(programs, cases, folder, jobs):
    """Writes a recording of every case and of some healthy runs, and the index; the names of cases that no short run shows."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.amprec"):
        old.unlink()
    entries, unshown = [], []
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        found = list(pool.map(lambda case: _smallest(programs, case), cases))
    for case, best in zip(cases, found):
        if best is None:
            unshown.append(case.name)
            continue
        data, entry = best
        (folder / entry["file"]).write_bytes(data)
        entries.append(entry)
    entries += _healthy(programs, folder)
    (folder / "index.json").write_text(json.dumps(entries, indent=1) + "\n")
    return unshown


def _smallest(programs, case):
    best = None
    for at, every in TRIED:
        found = _shown(programs, case, at, every)
        if found and (best is None or len(found[0]) < len(best[0])):
            best = found
        if best and len(best[0]) <= SMALL:
            break
    print(f"{case.name:28} {len(best[0]) if best else 'no short run shows it':>8}", flush=True)
    return best


def _shown(programs, case, at, every):
    """The recording, cut, and its entry in the index; None where the fault is not found in it as it has to be."""
    trial = _trial(case, at)
    with tempfile.TemporaryDirectory() as holder:
        recording = _recorded(programs, trial.arguments(), every, Path(holder))
        run = Path(holder) / "run"
        _, report = programs.check(run)
        outcome = judged(trial, report, None)
        if not outcome["right"] or any("comes before" in fault or "before the fault" in fault for fault in outcome["faults"]):
            return None
        stood = first_stood(recording, trial.onset, asked(programs, run, is_right(trial)))
        data = recording.up_to(stood + STEPS_BEHIND)
        (run / RECORDING).write_bytes(data)
        _, report = programs.check(run)
        outcome = judged(trial, report, stood)
        first = next((finding for finding in report["findings"] if is_right(trial)(finding)), None)
        if first is None or any("comes before" in fault for fault in outcome["faults"]):
            return None
    entry = _entry(f"{case.name}.amprec", trial.arguments(), every)
    return data, dict(entry, codes=list(case.codes), beside=list(case.beside), layer=trial.named(), planted=trial.onset, found=stood)


def _trial(case, at):
    model = case.models[0]
    onset = case.at[model]
    layers = case.layers.get(model, ("",))
    layer = MIDDLE[model] if MIDDLE[model] in layers else layers[-1]
    precision, optimizer = case.precisions[0], case.optimizers[model][0]
    return Trial(case.name, case, model, precision, optimizer, SEED, layer, at if at and onset else onset)


def _healthy(programs, folder):
    well = [(precision, precision, ()) for precision in HEALTHY]
    well += [(plant.split("@")[0], "fp16", ("--fault", plant)) for plant in HARMLESS]
    for name, precision, plant in well:
        arguments = (*settings(MODELS[0], precision, "adam", SEED, HEALTHY_STEPS), *plant)
        with tempfile.TemporaryDirectory() as holder:
            data = _recorded(programs, arguments, HEALTHY_EVERY, Path(holder)).data
        entry = _entry(f"healthy-{name}.amprec", arguments, HEALTHY_EVERY)
        (folder / entry["file"]).write_bytes(data)
        yield dict(entry, codes=[], beside=[], layer=None, planted=None, found=None)


def _entry(file, arguments, every):
    command = " ".join(str(part) for part in ("ampdoctor-trainer", *arguments, "--every", every))
    return {"file": file, "command": command}


def _recorded(programs, arguments, every, folder):
    """The recording of a run that is started by its name alone, in the folder: no path of this machine gets into it."""
    path = os.pathsep.join([str(programs.trainer.parent), os.environ.get("PATH", "")])
    command = [str(part) for part in (programs.trainer.name, *arguments, "--every", every, "--run", "run")]
    environment = dict(os.environ, PATH=path)
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
    return Recording(folder / "run" / RECORDING)
