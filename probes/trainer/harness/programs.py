"""Driving the binaries."""

import functools
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

RECORDING = "rank-0.amprec"
# Far above what any run takes; a hang is a failure, not a reason to wait for ever.
TIMEOUT_SECONDS = 600


class Unmet(Exception):
    """What was claimed does not hold; the text says how."""


def require(condition, text):
    """Raises `Unmet` with the text unless the condition holds."""
    if not condition:
        raise Unmet(text)


class Programs:
    """The trainer and ampdoctor in a folder of binaries; runs are recorded below `runs`."""

    def __init__(self, folder, runs):
        self.trainer = Path(folder).resolve() / "ampdoctor-trainer"
        self.doctor = Path(folder).resolve() / "ampdoctor"
        self.runs = Path(runs).resolve()

    def all(self):
        """The files that a result depends on."""
        return [self.trainer, self.doctor]

    def new_run(self, name):
        """A run directory that does not exist yet."""
        run = self.runs / name
        shutil.rmtree(run, ignore_errors=True)
        run.parent.mkdir(parents=True, exist_ok=True)
        return run

    def train(self, *arguments):
        """Trains, and returns the summary."""
        summary, said = self.try_to_train(*arguments)
        require(summary is not None, f"the trainer failed: {said}")
        return summary

    def try_to_train(self, *arguments):
        """Trains; the summary, or None and the last line on standard error where the trainer gave up."""
        done = self._run([self.trainer, *arguments, "--summary", "json"])
        if done.returncode != 0:
            return None, _last_line(done.stderr)
        return json.loads(done.stdout.splitlines()[-1]), ""

    def faults(self):
        """The names of the faults that the trainer can plant."""
        done = self._run([self.trainer, "--list-faults"])
        require(done.returncode == 0, f"the trainer lists no faults ({done.returncode}): {_last_line(done.stderr)}")
        return {line.split()[0] for line in done.stdout.splitlines() if line.strip()}

    def rules(self):
        """The rules, as `ampdoctor rules --format json` lists them."""
        done = self._run([self.doctor, "rules", "--format", "json"])
        require(done.returncode == 0, f"the rules are not listed ({done.returncode}): {_last_line(done.stderr)}")
        return json.loads(done.stdout)

    @functools.cache
    def flags(self):
        """The trainer's flags, as its help names them."""
        done = self._run([self.trainer, "--help"])
        require(done.returncode == 0, f"the trainer has no help ({done.returncode}): {_last_line(done.stderr)}")
        return {word for word in done.stdout.split() if word.startswith("--")}

    def start(self, *arguments):
        """Starts the trainer and returns the process."""
        command = [str(part) for part in (self.trainer, *arguments)]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, stdout=quiet, stderr=quiet, env=_environment())

    def check(self, run, config=None):
        """Exit status and report of `ampdoctor check`, with the thresholds of a configuration where there is one."""
        report = run / "report.json"
        report.unlink(missing_ok=True)
        configured = ["--config", config] if config else []
        done = self._run([self.doctor, "check", run, "--report", report, *configured])
        require(report.exists(), f"check wrote no report ({done.returncode}): {_last_line(done.stderr)}")
        return done.returncode, json.loads(report.read_text())

    def report(self, run):
        """The report as `ampdoctor report --format json` prints it."""
        done = self._run([self.doctor, "report", run, "--format", "json"])
        require(done.returncode == 0, f"no report ({done.returncode}): {_last_line(done.stderr)}")
        return json.loads(done.stdout)

    def whatif(self, run):
        """What `ampdoctor whatif --format json` says."""
        done = self._run([self.doctor, "whatif", run, "--format", "json"])
        require(done.returncode == 0, f"no what-if ({done.returncode}): {_last_line(done.stderr)}")
        return json.loads(done.stdout)

    def _run(self, command):
        command = [str(part) for part in command]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=_environment())
        except subprocess.TimeoutExpired:
            raise Unmet(f"not done after {TIMEOUT_SECONDS} s: {' '.join(command)}") from None


def wait_for(condition, seconds):
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.002)
    return False


def _environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("AMPDOCTOR_")}


def _last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
