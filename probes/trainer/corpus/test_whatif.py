"""Tests of what judges what-if: `python3 -m unittest discover -s probes/trainer`."""

import math
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from corpus import whatif
from corpus.frames import Recording
from corpus.test_corpus import frame, step_frame


def guess(share, scales=(10, 14), lost=0.0, inherits=False):
    at = {"fading_share": [share, 0.0], "lost_share": [lost, 0.0], "overflow_share": [0.0, 0.0], "inherits_loss": [inherits, False]}
    return {("fc1", "linear", "activation_grad"): ({"nonzero": 100, "at": at}, list(scales))}


def held(first, counts, inf=0, layer="fc1"):
    exponents = {"first": first, "counts": counts}
    kept = sum(counts) + inf
    counted = {"count": 100, "zeros": 100 - kept, "inf": inf, "nan": 0, "exponents": exponents}
    return {"layer": layer, "operator": "linear", "probe": "activation_grad", **counted}


class Shares(unittest.TestCase):
    def test_what_is_subnormal_in_fp16_is_counted_as_fading(self):
        # 2^-16 and 2^-15 are subnormal, 2^-14 is not.
        errors = dict(whatif._errors(guess(0.30), [held(-16, [10, 20, 70])], 10))
        self.assertAlmostEqual(errors["fading"], 0.0)
        self.assertAlmostEqual(dict(whatif._errors(guess(0.25), [held(-16, [10, 20, 70])], 10))["fading"], 0.05)

    def test_what_is_lost_is_what_is_missing_of_the_elements_that_were_not_zero(self):
        errors = dict(whatif._errors(guess(0.30, lost=0.05), [held(-16, [10, 20, 60])], 10))
        self.assertAlmostEqual(errors["lost"], 0.05)

    def test_a_bound_may_be_undercut_and_not_be_passed(self):
        marked = {"lost": 0.05, "inherits": True}
        self.assertEqual(list(whatif._errors(guess(0.35, **marked), [held(-16, [10, 20, 60])], 10)), [("overflow", 0.0), ("bound", 0.0)])
        self.assertAlmostEqual(dict(whatif._errors(guess(0.28, **marked), [held(-16, [10, 20, 60])], 10))["bound"], 0.02)
        self.assertAlmostEqual(dict(whatif._errors(guess(0.35, **marked), [held(-16, [10, 20, 70])], 10))["bound"], 0.05)

    def test_behind_the_first_infinity_nothing_is_compared(self):
        both = [held(0, [99], inf=1), held(-16, [100])]
        self.assertEqual([what for what, _ in whatif._errors(guess(0.0), both, 10)], ["overflow"])

    def test_a_tensor_that_was_not_foretold_is_passed_over(self):
        self.assertEqual(list(whatif._errors(guess(0.0), [held(0, [1], layer="fc9")], 10)), [])


class Windows(unittest.TestCase):
    def test_a_loss_within_a_hundredth_matches_and_one_that_is_no_number_does_not(self):
        self.assertTrue(whatif._matches([1.004, 0.998, 1.006]))
        self.assertFalse(whatif._matches([1.05, 1.04, 1.06]))
        self.assertFalse(whatif._matches([1.0, math.inf, 1.0]))

    def test_chance_is_allowed_for_by_the_spread_of_the_seeds(self):
        self.assertTrue(whatif._matches([0.8, 1.3, 1.1]))
        self.assertFalse(whatif._matches([1.3, 1.31, 1.29]))

    def test_the_scales_that_are_tried_lie_where_they_are_said_to_lie(self):
        places = whatif._places({"low": -4, "high": 16, "recommended": 14})
        self.assertEqual(places["below"], -4 - whatif.BELOW)
        self.assertTrue(all(-4 <= places[place] <= 16 for place in ("low", "middle", "recommended", "high")))
        self.assertGreater(places["above"], 16)


class Frames(unittest.TestCase):
    def test_one_step_is_left_and_all_that_is_no_step(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rank-0.amprec"
            head, end = frame(b"\x0a\x03run"), frame(b"\x32\x00")
            steps = [step_frame(index, 1.0) for index in (0, 1, 200)]
            path.write_bytes(head + b"".join(steps) + end)
            self.assertEqual(Recording(path).only(200), head + steps[2] + end)


if __name__ == "__main__":
    unittest.main()
