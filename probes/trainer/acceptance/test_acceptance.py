"""Tests of the long checks themselves: `python3 -m unittest discover -s probes/trainer`."""

import contextlib
import io
import json
import struct
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from acceptance import __main__ as command
from acceptance import items, killed
from acceptance.faults import IN_RUN, judge
from harness.programs import Unmet
from harness.store import Store


def finding(code="AMP201", layer="fc1", onset=100):
    return {"code": code, "layer": layer, "onset_step": onset, "severity": "error", "consequences": []}


class InAFolder(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.program = self.folder / "program"
        self.program.write_text("one")


class Stored(InAFolder):
    def store(self):
        return Store(self.folder / "results", [self.program])

    def test_what_passed_is_not_run_again(self):
        self.store().keep("a", {"ok": True, "late": 3})
        self.assertEqual(self.store().finished("a")["late"], 3)

    def test_what_failed_is_run_again(self):
        self.store().keep("a", {"ok": False, "why": "no"})
        self.assertIsNone(self.store().finished("a"))

    def test_another_program_makes_every_result_old(self):
        self.store().keep("a", {"ok": True})
        self.program.write_text("two")
        self.assertIsNone(self.store().finished("a"))

    def test_a_damaged_result_is_no_result(self):
        self.store().keep("a", {"ok": True})
        (self.folder / "results" / "a.json").write_text('{"ok": tr')
        self.assertIsNone(self.store().finished("a"))


class Judged(unittest.TestCase):
    def fails(self, findings, text, layer="fc1"):
        with self.assertRaisesRegex(Unmet, text):
            judge(findings, ("AMP201", "AMP307"), layer, 100, 10)

    def test_the_right_code_at_the_right_layer_soon_passes(self):
        self.assertEqual(judge([finding(onset=104)], ("AMP201",), "fc1", 100, 10), {"late": 4, "findings": 1})

    def test_another_layer_another_code_too_late_and_too_early_fail(self):
        self.fails([finding(layer="fc2")], "no AMP201 or AMP307 at fc1")
        self.fails([finding(code="AMP501")], "no AMP201 or AMP307 at fc1")
        self.fails([finding(onset=111)], "only 11 steps after")
        self.fails([finding(onset=99)], "before the fault was planted")

    def test_what_follows_from_another_finding_is_found_too(self):
        root = finding(code="AMP102", onset=101) | {"consequences": [finding(onset=102)]}
        self.assertEqual(judge([root], ("AMP201",), "fc1", 100, 10)["late"], 2)

    def test_blaming_another_layer_first_fails(self):
        self.fails([finding(layer="fc3"), finding()], "AMP201 fc3 @100 .* comes before fc1")


    def test_any_of_the_codes_in_the_run_will_do(self):
        found = [finding(code="AMP307", layer="", onset=101)]
        self.assertEqual(judge(found, ("AMP201", "AMP307"), None, 100, 10), {"late": 1, "findings": 1})


class Table(unittest.TestCase):
    def test_every_item_has_a_name_of_its_own(self):
        names = [name for _, name, _ in items.all_items()]
        self.assertEqual(len(names), len(set(names)))

    def test_every_fault_of_the_run_is_planted_with_every_seed_in_every_model(self):
        runs = [name for _, name, _ in items.all_items() if "-run-" in name]
        self.assertEqual(len(runs), len(IN_RUN) * 9)


class Frames(InAFolder):
    def test_a_cut_frame_does_not_count(self):
        frame = struct.pack("<QI", 5, 0) + b"12345" + b"crc."
        path = self.folder / "recording"
        path.write_bytes(frame * 2 + frame[:-1])
        self.assertEqual(killed.whole_frames(path), (2, 2 * len(frame), 3 * len(frame) - 1))


class TheCommand(InAFolder):
    def run_command(self, status, findings):
        """Runs one item against programs that are scripts; the exit status and what was printed."""
        report = {"findings": findings, "doubts": []}
        self.script("ampdoctor-trainer", "print('{\"loss\": 0.01}')")
        self.script("ampdoctor", f"import sys, pathlib\np = pathlib.Path(sys.argv[4])\np.parent.mkdir(exist_ok=True)\np.write_text({json.dumps(report)!r})\nsys.exit({status})")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            out = self.folder / "out"
            code = command.main(["--bin", str(self.folder), "--out", str(out), "--only", "healthy-mlp-fp32-sgd-0"])
        return code, said.getvalue()

    def script(self, name, text):
        path = self.folder / name
        path.write_text(f"#!{sys.executable}\n{text}\n")
        path.chmod(0o755)

    def test_a_healthy_run_passes_and_is_kept(self):
        code, said = self.run_command(0, [])
        self.assertEqual(code, 0, said)
        self.assertIn("healthy         1/1", said)
        code, said = self.run_command(0, [])
        self.assertIn("1 of 1 are finished already", said)

    def test_a_finding_in_a_healthy_run_fails_and_is_shown(self):
        code, said = self.run_command(1, [finding()])
        self.assertEqual(code, 1)
        self.assertIn("FAILED healthy-mlp-fp32-sgd-0: findings in a healthy run: AMP201 fc1 @100 (error)", said)


if __name__ == "__main__":
    unittest.main()
