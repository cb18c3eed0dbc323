"""Tests of the corpus's machinery: `python3 -m unittest discover -s probes/trainer`."""

import struct
import sys
import tempfile
import unittest
from unittest import mock
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from corpus import page, tables
from corpus.cases import CASES, LOST, MIDDLE, PLANTED, REPLACES, Case
from corpus.cures import healthy_pairs, reference
from corpus.detection import first_stood
from corpus.frames import Recording
from corpus.healthy import healthy_items
from corpus.judge import judged
from corpus.margins import Threshold, search, searched, turning_points, written
from corpus.people import MET, is_of
from corpus.references import HAIRS, MORE_HAIRS, losses, more_hairs
from corpus.remedies import is_close, log_ratio, noise_of, remedies, verdict
from corpus.settings import applied
from corpus.trials import Trial, trials
from harness.programs import Programs
from harness.runs import MODELS

SHARE = Threshold("AMP301", "scale-thrash", "skip-share", 0.02, "share of steps", "measured")
FLAGS = {"--batch", "--accumulate", "--clip", "--schedule", "--eval-every", "--init-scale", "--growth-interval", "--static-scale"}


def finding(code="AMP201", layer="fc2", onset=80, severity="error", settings=None, follows=()):
    remedy = {"text": "Change it.", "set": settings or {}}
    place = {"code": code, "layer": layer, "onset_step": onset, "severity": severity}
    return dict(place, remedy=remedy, evidence={"max_abs": 1.0}, consequences=list(follows))


def report(*findings, doubts=()):
    return {"findings": list(findings), "doubts": [{"code": code} for code in doubts]}


def trial(**row):
    case = Case("case", "seen", ("AMP201",), "underflow", layer=PLANTED, at=MIDDLE, within=20)._replace(**row)
    return Trial("trial", case, "mlp", "fp16", "adam", 6, "fc2", 80)


def varint(value):
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])


def frame(record):
    return struct.pack("<QI", len(record), 0) + record + b"crc."


def step_frame(index, loss):
    body = (b"\x08" + varint(index) if index else b"") + b"\x29" + struct.pack("<d", loss) + b"\x22\x02\x08\x01"
    return frame(b"\x22" + varint(len(body)) + body)


class Frames(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.path = Path(holder.name) / "rank-0.amprec"
        self.head = frame(b"\x0a\x03run")
        self.steps = [step_frame(index, 2.0 - index / 100) for index in (0, 1, 200)]
        self.path.write_bytes(self.head + b"".join(self.steps) + frame(b"\x32\x00"))

    def test_a_recording_is_cut_behind_the_frame_of_a_step(self):
        recording = Recording(self.path)
        self.assertEqual([index for index, _, _ in recording.steps], [0, 1, 200])
        self.assertEqual(recording.up_to(0), self.head + self.steps[0])
        self.assertEqual(recording.up_to(150), self.head + self.steps[0] + self.steps[1])
        self.assertEqual(recording.up_to(999), self.head + b"".join(self.steps))

    def test_losses_are_those_of_the_steps(self):
        self.assertEqual(Recording(self.path).losses(), [2.0, 1.99, 0.0])


class Taken:
    """A recording whose cuts are the number of the step they end with."""

    def __init__(self, count):
        self.steps = [(index, index, None) for index in range(count)]

    def up_to(self, step):
        return step


class Detection(unittest.TestCase):
    def test_the_first_step_after_which_it_stands_is_found_wherever_it_is(self):
        for first in [*range(50, 60), 73, 74, 75, 76, 77, 80, 149, 398, 399]:
            self.assertEqual(first_stood(Taken(400), 50, lambda step: step >= first), first)

    def test_what_never_stands_is_none(self):
        self.assertIsNone(first_stood(Taken(400), 50, lambda step: False))
        self.assertIsNone(first_stood(Taken(40), 50, lambda step: True))

    def test_few_cuts_are_judged(self):
        asked = []
        first_stood(Taken(100_000), 0, lambda step: asked.append(step) or step >= 77_777)
        self.assertLess(len(asked), 60)


class Judged(unittest.TestCase):
    def outcome(self, *findings, stood=82, doubts=(), **row):
        return judged(trial(**row), report(*findings, doubts=doubts), stood)

    def test_the_right_code_at_the_right_layer_in_time_is_right(self):
        outcome = self.outcome(finding(settings={"init_scale": 8192.0}))
        self.assertEqual((outcome["right"], outcome["faults"], outcome["steps"]), (True, [], 2))
        self.assertEqual((outcome["found"], outcome["set"]), ("AMP201", {"init_scale": 8192.0}))

    def test_another_layer_is_wrong(self):
        outcome = self.outcome(finding(layer="fc3"), stood=None)
        self.assertFalse(outcome["right"])
        self.assertRegex(outcome["faults"][0], "no AMP201 at fc2, but AMP201 fc3 @80")

    def test_another_finding_first_is_no_clean_diagnosis(self):
        outcome = self.outcome(finding("AMP302", ""), finding())
        self.assertEqual((outcome["right"], outcome["found"]), (True, "AMP302"))
        self.assertRegex(outcome["faults"][0], "AMP302 run @80 .* comes before AMP201 at fc2")

    def test_what_the_same_setting_brings_may_come_first(self):
        outcome = self.outcome(finding("AMP401", ""), finding(), beside=("AMP401",))
        self.assertEqual((outcome["faults"], outcome["found"]), ([], "AMP201"))

    def test_what_stands_under_a_cause_that_the_case_knows_is_found_and_under_another_is_not(self):
        under = finding("AMP401", "", follows=[finding()])
        self.assertEqual(self.outcome(under, beside=("AMP401",))["found"], "AMP201")
        outcome = self.outcome(under)
        self.assertEqual((outcome["right"], outcome["found"]), (False, "AMP401"))

    def test_a_finding_before_the_fault_and_one_too_late_are_told(self):
        self.assertRegex(self.outcome(finding(), finding("AMP403", "", 12))["faults"][0], "before the fault: AMP403")
        self.assertRegex(self.outcome(finding(), stood=101)["faults"][0], "only after 21 steps")
        self.assertEqual(self.outcome(finding(), stood=101, within=None)["faults"], [])

    def test_silence_and_doubt_are_told_apart(self):
        self.assertEqual(self.outcome(stood=None)["found"], "none")
        self.assertEqual(self.outcome(stood=None, doubts=["AMP201"])["found"], "unsure")
        self.assertEqual(self.outcome(stood=None, doubts=["AMP403"])["found"], "none")

    def test_a_remark_is_no_diagnosis_unless_it_is_asked_for(self):
        remark = finding("AMP402", "", severity="info")
        self.assertEqual(self.outcome(remark, finding())["faults"], [])
        self.assertTrue(self.outcome(remark, codes=("AMP402",), layer="run")["right"])


class Plan(unittest.TestCase):
    def test_every_case_and_every_run_has_a_name_of_its_own(self):
        names = [case.name for case in CASES]
        self.assertEqual(len(names), len(set(names)))
        names = [t.name for t in trials(CASES, (6, 7, 8))] + [item.name for item in healthy_items((6, 7, 8), FLAGS, {"dropout", "frozen", "closed-gate"})]
        self.assertEqual(len(names), len(set(names)))

    def test_a_case_is_met_in_several_steps_layers_optimizers_and_seeds(self):
        of = [t for t in trials(CASES, (6, 7, 8)) if t.case.name == "underflow" and t.model == "mlp"]
        self.assertEqual({t.layer for t in of}, {"fc1", "fc2", "fc3"})
        self.assertEqual({t.optimizer for t in of}, {"sgd", "adam", "adamw"})
        self.assertEqual({t.precision for t in of}, {"fp16", "fp16-masters"})
        self.assertEqual(({t.seed for t in of}, len({t.onset for t in of})), ({6, 7, 8}, 3))

    def test_at_least_sixty_healthy_runs_are_watched_in_each_way(self):
        names = [item.name for item in healthy_items((6, 7, 8), FLAGS, {"dropout", "frozen", "closed-gate"}) if item.group == "converged"]
        self.assertGreaterEqual(sum(name.endswith("every-1") for name in names), 60)
        self.assertGreaterEqual(sum(name.endswith("budget") for name in names), 60)

    def test_every_rule_that_judges_a_run_has_a_row(self):
        pages = {page.name[:6] for page in (Path(__file__).resolve().parents[3] / "docs" / "rules").glob("AMP*.md")}
        shown = {code for case in CASES for code in case.codes}
        # These judge the instrument, which faults of a run do not break.
        instrument = {"AMP001", "AMP002"}
        # These hold the ranks of one run against one another, and a row is one process: tests/ranks.rs of the trainer plants them in four.
        ranks = {page for page in pages if page.startswith("AMP8")}
        self.assertGreater(len(pages), 50)
        self.assertEqual(pages - shown - instrument - ranks, set())
        self.assertEqual(shown - pages, set())

    def test_everything_that_people_see_is_shown_by_rows_and_runs_that_there_are(self):
        cases = {case.name for case in CASES}
        healthy = [item.name for item in healthy_items((6, 7, 8), FLAGS, set())]
        for what, rows in MET:
            for row in rows:
                self.assertTrue(row in cases or any(is_of(row, name) for name in healthy), f"{row}: {what}")

    def test_a_fault_leaves_room_to_be_found_before_the_run_ends(self):
        for t in trials(CASES, (6, 7, 8)):
            self.assertGreater(t.case.steps[t.model], t.onset + (t.case.within or 0), t.name)


class Cures(unittest.TestCase):
    def test_a_setting_takes_the_place_of_the_one_before(self):
        self.assertEqual(applied(("--lr", 1, "--steps", 9), {"lr": 0.1}), ("--steps", 9, "--lr", 0.1))

    def test_a_dynamic_scale_ends_a_static_one(self):
        self.assertEqual(applied(("--static-scale", 2, "--seed", 1), {"scaler": "dynamic"}), ("--seed", 1))
        treated = applied(("--static-scale", 2), {"init_scale": 1024.0})
        self.assertEqual(treated, ("--init-scale", 1024.0))

    def test_what_stays_of_a_fault_stays_under_the_remedy_and_in_fp32(self):
        planted = ("--fault", "underflow@80:fc2", "--keep-settings")
        self.assertEqual(reference(trial(), {"scaler": "dynamic", "clip": 1})[-7:], (*planted, "--precision", "fp32", "--clip", 1))
        self.assertNotIn("--fault", reference(trial(cure=REPLACES), {}))
        self.assertIn(("--precision", "fp32"), pairs(reference(trial(around={"mlp": ("--init-scale", 4)}), {"lr": 1})))
        self.assertFalse({"--init-scale", "--lr"} & set(reference(trial(around={"mlp": ("--init-scale", 4)}), {"lr": 1})))

    def test_steps_that_were_skipped_are_left_out_of_fp32(self):
        self.assertEqual(reference(trial(), {}, [3, 70])[-2:], ("--leave-out", "3,70"))
        self.assertNotIn("--leave-out", reference(trial(), {}))

    def test_a_batch_of_which_the_remedy_leaves_nothing_is_left_out_of_fp32(self):
        arguments = reference(trial(cure=LOST), {"clip": 1})
        self.assertEqual((arguments[-2:], "--fault" in arguments), (("--leave-out", "80"), False))

    def test_a_learning_rate_is_moved_by_as_much_as_the_format_rounds(self):
        largest = lambda precision: max(more_hairs(("--seed", 6, "--precision", precision)))
        self.assertEqual([largest(of) for of in ("fp32", "fp16", "bf16", "bf16-masters")], [2**-10, 2**-10, 2**-8, 2**-8])

    def test_fp32_is_trained_once_for_all_that_are_held_against_it(self):
        trained = []
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "ampdoctor-trainer").write_text("it")
            for _ in range(2):
                programs = Programs(folder, Path(folder) / "runs")
                programs.train = lambda *arguments: trained.append(arguments) or {"loss": len(trained), "lr": 2.0}
                self.assertEqual(losses(programs, ("--seed", 6)), list(range(1, 1 + len(HAIRS))))
            self.assertEqual(losses(programs, ("--seed", 6), MORE_HAIRS), list(range(1, 1 + len(MORE_HAIRS))))
        self.assertEqual(len({arguments[-2] for arguments in trained[1:]}), len(trained) - 1)

    def test_a_difference_is_held_against_what_a_rounding_makes_of_fp32(self):
        cure = {"seed": 6, "losses": [1.06], "faulty_loss": "NaN", "fp32_losses": [1.0, 1.02, 0.98, 1.03, 0.97, 1.0, 1.0]}
        said = verdict(log_ratio([cure]), noise_of([cure]))
        self.assertRegex(said, r"within seed noise \(2.\d sigma\)")
        three = [dict(cure, seed=seed) for seed in (6, 7, 8)]
        self.assertRegex(verdict(log_ratio(three), noise_of(three)), r"differs \(4.\d sigma\)")
        # Three layers with one seed tell no more than one.
        self.assertAlmostEqual(noise_of([cure] * 3), noise_of([cure]))
        self.assertEqual(verdict(0.009, 1e-6), "within 1 %")
        self.assertEqual(verdict(log_ratio([dict(cure, losses=["NaN"])]), 0.1), "not finite")

    def test_a_run_that_was_trained_more_often_is_known_better(self):
        once = {"seed": 6, "losses": [1.06], "fp32_losses": [1.0, 1.02, 0.98, 1.03, 0.97]}
        five = dict(once, losses=[1.06, 1.05, 1.07, 1.04, 1.08])
        self.assertLess(noise_of([five]), noise_of([once]) / 1.5)
        self.assertAlmostEqual(log_ratio([five]), log_ratio([once]), places=3)

    def test_what_healthy_runs_of_other_seeds_differ_by_is_noise_and_is_shown(self):
        cure = {"seed": 6, "losses": [1.06, 1.061], "fp32_losses": [1.0, 1.001, 0.999], "faulty_loss": 2.0, "gone": True, "steps": 9, "skips": 0}
        healthy = {"precision": "fp16", "optimizer": "sgd", "ratios": [0.95, 1.02, 1.04, 0.98, 1.01]}
        said = lambda cure: remedies({"one": {"case": "half-positions", "model": "conv", "set": {"lr": 1}, "cure": cure}})
        self.assertRegex(said(cure), r"differs \(\d+.\d sigma\)")
        self.assertNotIn("healthy runs over", said(cure).split("table.")[-1])
        text = said(dict(cure, healthy=healthy))
        self.assertRegex(text, r"± 3.6 % \| within seed noise \(1.7 sigma\)")
        self.assertRegex(text, r"\| conv +\| sgd +\| fp16 +\| 0.950 +\| 1.020 .* 3.6 %")
        lost = dict(healthy, ratios=[0.95, float("nan"), 1.04])
        self.assertIn("not finite", said(dict(cure, healthy=lost)))

    def test_healthy_pairs_are_without_the_fault_in_the_format_of_the_remedy(self):
        asked = []
        programs = type("Programs", (), {})()
        with mock.patch("corpus.cures.losses", lambda _, arguments, hairs: asked.append(arguments) or [len(asked)]):
            found = healthy_pairs(programs, trial(), {"precision": "fp16-masters", "init_scale": 8})
        self.assertEqual((found["precision"], len(found["ratios"])), ("fp16-masters", 5))
        self.assertEqual(found["ratios"][:2], [1 / 2, 3 / 4])
        self.assertFalse(any("--fault" in arguments or "--init-scale" in arguments for arguments in asked))
        self.assertEqual([dict(zip(a[::2], a[1::2]))["--precision"] for a in asked[:2]], ["fp16-masters", "fp32"])
        self.assertEqual([dict(zip(a[::2], a[1::2]))["--seed"] for a in asked[::2]], ["1", "2", "3", "4", "5"])

    def test_more_runs_are_asked_of_a_difference_alone(self):
        self.assertTrue(is_close([1.009], [1.0, 1.0, 1.0]))
        self.assertFalse(is_close([1.02], [1.0, 1.0, 1.0]))
        self.assertTrue(is_close(["NaN"], [1.0, 1.0, 1.0]))

    def test_a_fault_that_ends_fp32_too_is_told_as_such_and_ends_no_page(self):
        cure = {"seed": 6, "gone": True, "losses": ["NaN"], "faulty_loss": "NaN", "fp32_losses": ["NaN", 1.0, "NaN"], "steps": 9, "skips": 0}
        result = {"case": "overflow", "model": "mlp", "set": {"precision": "bf16"}, "cure": cure}
        self.assertIn("FP32's is not finite either", remedies({"one": result}))


def pairs(arguments):
    return list(zip(arguments, arguments[1:]))


class Margins(unittest.TestCase):
    def test_the_value_at_which_a_run_turns_is_found_on_its_side(self):
        low, high = turning_points(SHARE, lambda value: value > 0.004)
        self.assertIsNone(high)
        self.assertTrue(0.0033 < low <= 0.004, low)

    def test_a_threshold_that_decides_nothing_turns_nowhere(self):
        self.assertEqual(turning_points(SHARE, lambda value: True), (None, None))

    def test_shares_and_counts_stay_what_they_are(self):
        self.assertEqual(SHARE.moved(20), 1.0)
        count = SHARE._replace(default=3.0, unit="samples in a row")
        self.assertEqual((count.moved(-20), count.moved(1), count.moved(0.1)), (1.0, 6.0, 3.0))
        self.assertEqual(turning_points(count, lambda value: value < 7), (None, 7.0))

    def test_searches_side_by_side_find_what_each_finds_alone(self):
        limits = {SHARE: 0.004, SHARE._replace(name="rise"): 0.5, SHARE._replace(name="none"): -1}
        rounds = []

        def answered(asked):
            rounds.append(len(asked))
            return {one: value > limits[one] for one, value in asked.items()}

        together = searched({one: search(one) for one in limits}, answered)
        self.assertEqual(together, {one: turning_points(one, lambda value, one=one: value > limits[one]) for one in limits})
        self.assertEqual((rounds[0], len(rounds) < sum(rounds)), (3, True))

    def test_a_moved_threshold_is_written_as_the_configuration_has_it(self):
        self.assertEqual(written(SHARE, 0.5), "[rules.scale-thrash]\nskip-share = 0.5\n")


class Page(unittest.TestCase):
    def results(self):
        right = dict(judged(trial(cure="replaces"), report(finding()), 82), ok=True)
        right["cure"] = {"seed": 6, "gone": True, "left": [], "losses": [1.001], "fp32_losses": [1.0, 1.0], "faulty_loss": "NaN", "skips": 2, "steps": 100}
        right["set"] = {"init_scale": 8192.0}
        wrong = dict(judged(trial(), report(finding("AMP302", "")), None), ok=True)
        alarm = {"ok": True, "group": "converged", "way": "every-1", "findings": ["AMP201 fc1 @3 (error)"], "right": False,
                 "unsure": [], "loss": 0.01, "converged": True}
        return {"right": right, "wrong": wrong, "alarm": alarm, "quiet": dict(alarm, right=True, findings=[])}

    def test_misses_and_false_alarms_are_counted_and_named(self):
        text = page.written(self.results(), ["absent"], "6,7", [SHARE])
        self.assertIn("1 of 2 (50.0 %)", text)
        self.assertIn("* `alarm`: AMP201 fc1 @3 (error)", text)
        self.assertIn("* `wrong`: no AMP201 at fc2, but AMP302 run @80 (error)", text)
        self.assertIn("The trainer has no such fault: absent.", text)

    def test_a_confusion_is_in_its_row_and_column(self):
        cases, _ = page.split(self.results())
        lines = tables.matrix(cases).splitlines()
        self.assertEqual([cell.strip() for cell in lines[0].split("|")[1:-1]], ["planted", "AMP201", "AMP302"])
        self.assertEqual([cell.strip() for cell in lines[2].split("|")[1:-1]], ["AMP201", "1", "1"])

    def test_a_cure_is_judged_by_its_finding_and_its_loss(self):
        cases, _ = page.split(self.results())
        self.assertRegex(remedies(cases), r"init_scale 2\^13 +\| 1/1 .*not finite .*1.001 .*within 1 %")


if __name__ == "__main__":
    unittest.main()
