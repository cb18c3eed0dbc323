"""Runs that are killed."""

import random
import shutil
import signal
import struct
import time

from harness.programs import RECORDING, require, wait_for
from harness.runs import MODELS, PRECISIONS, settings


def killed(number):
    """A run that is killed reads to its last whole frame, says that it did not end, and reports."""

    def check(programs):
        run = programs.new_run(f"killed-{number}")
        chance = random.Random(number)
        trainer = programs.start(*_of(number), "--every", 1, "--run", run)
        recording = run / RECORDING
        try:
            begun = wait_for(lambda: recording.exists() and recording.stat().st_size > 0, 60)
            time.sleep(chance.uniform(0.0, 2.0))
        finally:
            trainer.send_signal(signal.SIGKILL)
            trainer.wait()
        require(begun, "nothing was recorded")
        frames, whole, size = whole_frames(recording)
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


def _of(number):
    model, precision = MODELS[number % len(MODELS)], PRECISIONS[number % len(PRECISIONS)]
    return settings(model, precision, "adam", number, 1_000_000)


def whole_frames(recording):
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
