"""What is checked, as a table of named functions; each raises `Unmet` or returns what it measured."""

import itertools
import random
import shutil
import signal
import struct
import time

from .programs import RECORDING, Unmet, require, wait_for

LAYERS = {"mlp": ("fc1", "fc2", "fc3"), "conv": ("conv1", "bn1", "conv2", "bn2", "fc1", "fc2")}
PRECISIONS = ("fp32", "bf16", "fp16")
OPTIMIZERS = ("sgd", "adam", "adamw")
SEEDS = (0, 1, 2)
CODES = {"underflow": "AMP201", "overflow": "AMP102", "nan": "AMP501"}
FAULT_STEP = 100
ONSET_WITHIN = 10
KILLS = 20
LEAST_ACCURACY = 0.95
LARGEST_DIFFERENCE = 0.01


def all_items():
    """Every item as (group, name, function of the programs), in the order in which they are run."""
    for model, precision, optimizer, seed in itertools.product(LAYERS, PRECISIONS, OPTIMIZERS, SEEDS):
        yield "healthy", f"healthy-{model}-{precision}-{optimizer}-{seed}", healthy(model, precision, optimizer, seed)
    for model, seed in itertools.product(LAYERS, SEEDS):
        yield "underflow", f"underflow-{model}-run-{seed}", fault("underflow", model, None, seed)
        for name, layer in itertools.product(CODES, LAYERS[model]):
            yield name, f"{name}-{model}-{layer}-{seed}", fault(name, model, layer, seed)
        for precision in ("fp32", "bf16"):
            layer = LAYERS[model][-2]
            yield "nan", f"nan-{model}-{precision}-{layer}-{seed}", fault("nan", model, layer, seed, precision)
    for model, precision, optimizer in itertools.product(LAYERS, PRECISIONS, OPTIMIZERS):
        yield "identity", f"identity-{model}-{precision}-{optimizer}", identity(model, precision, optimizer)
    for number in range(KILLS):
        yield "killed", f"killed-{number}", killed(number)
    for model, optimizer, seed in itertools.product(LAYERS, OPTIMIZERS, SEEDS):
        yield "accuracy", f"accuracy-{model}-{optimizer}-{seed}", accuracy(model, optimizer, seed)


def healthy(model, precision, optimizer, seed):
    """A healthy run gives no finding, whatever its severity."""

    def check(programs):
        run = programs.new_run(f"healthy-{model}-{precision}-{optimizer}-{seed}")
        programs.train(*_settings(model, precision, optimizer, seed, 300), "--every", 1, "--run", run)
        status, report = programs.check(run)
        found = [_brief(finding) for finding in report["findings"]]
        require(not found, f"findings in a healthy run: {'; '.join(found)}")
        require(status == 0, f"check ended with {status}; doubts: {_doubts(report)}")
        shutil.rmtree(run)
        return {}

    return check


def fault(name, model, layer, seed, precision="fp16"):
    """A planted fault is found: the code, the layer, soon, and nothing before it."""
    code = CODES[name]

    def check(programs):
        run = programs.new_run(f"{name}-{model}-{precision}-{layer or 'run'}-{seed}")
        planted = f"{name}@{FAULT_STEP}" + (f":{layer}" if layer else "")
        settings = _settings(model, precision, "adam", seed, 300)
        programs.train(*settings, "--every", 1, "--run", run, "--fault", planted)
        require(b"fault" not in (run / RECORDING).read_bytes(), "the recording knows of the fault")
        status, report = programs.check(run)
        require(status == 1, f"check ended with {status}, not 1; doubts: {_doubts(report)}")
        result = _judge(report["findings"], code, layer)
        shutil.rmtree(run)
        return result

    return check


def _judge(findings, code, layer):
    listed = "; ".join(_brief(finding) for finding in findings)
    early = [finding for finding in findings if finding["onset_step"] < FAULT_STEP]
    require(not early, f"found before the fault was planted: {_brief(early[0]) if early else ''}")
    right = [f for f in findings if f["code"] == code and (layer is None or f["layer"] == layer)]
    require(right, f"no {code} at {layer or 'any layer'}, but: {listed}")
    late = right[0]["onset_step"] - FAULT_STEP
    require(late <= ONSET_WITHIN, f"{code} only {late} steps after the fault was planted")
    first = [f for f in findings if f["code"] == code][0]
    require(layer is None or first["layer"] == layer, f"{code} blames {first['layer']} before {layer}: {listed}")
    return {"late": late, "findings": len(findings)}


def identity(model, precision, optimizer):
    """The doctor changes nothing: the same fingerprint with and without it."""

    def check(programs):
        run = programs.new_run(f"identity-{model}-{precision}-{optimizer}")
        settings = _settings(model, precision, optimizer, 0, 200)
        watched = programs.train(*settings, "--every", 1, "--run", run)
        alone = programs.train(*settings, "--no-doctor")
        shutil.rmtree(run)
        require(
            watched["params_sha256"] == alone["params_sha256"],
            f"watched {watched['params_sha256'][:12]}, alone {alone['params_sha256'][:12]}",
        )
        return {"slower": watched["seconds"] / alone["seconds"]}

    return check


def killed(number):
    """A run that is killed reads to its last whole frame, says that it did not end, and reports."""

    def check(programs):
        run = programs.new_run(f"killed-{number}")
        chance = random.Random(number)
        trainer = programs.start(*_settings(*_kill_settings(number), number, 1_000_000), "--every", 1, "--run", run)
        recording = run / RECORDING
        try:
            begun = wait_for(lambda: recording.exists() and recording.stat().st_size > 0, 60)
            time.sleep(chance.uniform(0.0, 2.0))
        finally:
            trainer.send_signal(signal.SIGKILL)
            trainer.wait()
        require(begun, "nothing was recorded")
        frames, whole, size = _whole_frames(recording)
        report = programs.report(run)
        rank = report["ranks"][0]
        require(rank["recording"]["end"] == "cut", f"the report says that it ended: {rank['recording']}")
        require(not report["run"]["ended_in_order"], "the report says that it ended in order")
        damage = rank["recording"]["damage"]
        unread = damage["unread_bytes"] if damage else 0
        require(unread == size - whole, f"{unread} bytes unread, but {size - whole} lie behind the last whole frame")
        shutil.rmtree(run)
        return {"frames": frames, "steps": report["run"]["steps"], "cut_bytes": size - whole}

    return check


def _kill_settings(number):
    models, precisions = list(LAYERS), PRECISIONS
    return models[number % 2], precisions[number % 3], "adam"


def _whole_frames(recording):
    """How many whole frames there are, where the last one ends, and how long the file is."""
    data = recording.read_bytes()
    frames, at = 0, 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + 12 + length + 4
        if end > len(data):
            break
        frames, at = frames + 1, end
    return frames, at, len(data)


def accuracy(model, optimizer, seed):
    """FP16 learns the digits as well as FP32."""

    def check(programs):
        reached = {}
        for precision in ("fp32", "fp16"):
            summary = programs.train(*_settings(model, precision, optimizer, seed, 300), "--no-doctor")
            reached[precision] = summary["accuracy"]
        for precision, value in reached.items():
            require(value > LEAST_ACCURACY, f"{precision} reaches {100 * value:.2f} %")
        difference = abs(reached["fp32"] - reached["fp16"])
        require(difference < LARGEST_DIFFERENCE, f"{100 * difference:.2f} points apart: {reached}")
        return dict(reached, difference=difference)

    return check


def _settings(model, precision, optimizer, seed, steps):
    return (
        *("--model", model, "--precision", precision, "--optimizer", optimizer),
        *("--seed", str(seed), "--steps", str(steps)),
    )


def _brief(finding):
    return f"{finding['code']} {finding['layer'] or 'run'} @{finding['onset_step']} ({finding['severity']})"


def _doubts(report):
    return "; ".join(f"{doubt['code']} {doubt['reason']}" for doubt in report["doubts"]) or "none"
