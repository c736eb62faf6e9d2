"""Planted answers for `alike` of checks/ranks.py: which two servers' answers count as the same."""

import unittest

from checks.ranks import FLIPPED, alike

IDS = ["a", "b", "c"]


def answer(ids=IDS, apart=0.0, margin=1.0):
    """Ids with log-probabilities, and beside each id the other likely one, which lacks `margin`."""
    logprobs = [-1.0 - apart] * len(ids)
    return ids, logprobs, [{id: -1.0, "x": -1.0 - margin} for id in ids], 0


def flip(margin):
    """Two answers that differ from their second token on, the other's lacking so much."""
    return answer(margin=margin), answer(["a", "x", "x"])


def passes(pairs, jumps):
    return alike([one for one, _ in pairs], [other for _, other in pairs], jumps)[0]


class Alike(unittest.TestCase):
    def test_equal_answers_pass(self):
        for jumps in (False, True):
            self.assertTrue(passes([(answer(), answer())] * 3, jumps))

    def test_a_tie_passes(self):
        for jumps in (False, True):
            self.assertTrue(passes([flip(0.015)] * 5, jumps))

    def test_nothing_behind_the_first_difference_counts(self):
        one, other = flip(0.01)
        self.assertTrue(passes([(one, (other[0], [-1.0, -9.0, -9.0], other[2], 0))], False))

    def test_exact_servers_jump_nowhere(self):
        self.assertFalse(passes([flip(0.11)], False))
        self.assertTrue(passes([(answer(), answer(apart=0.11))], False))
        self.assertFalse(passes([(answer(), answer(apart=0.21))], False))

    def test_experts_and_drafts_jump_in_a_few_answers(self):
        equal = [(answer(), answer())] * 10
        self.assertTrue(passes([flip(0.3)] * FLIPPED + equal, True))
        self.assertFalse(passes([flip(0.3)] * (FLIPPED + 1) + equal, True))
        self.assertTrue(passes([(answer(), answer(apart=0.24))], True))
        self.assertFalse(passes([(answer(), answer(apart=0.51))], True))

    def test_no_jump_is_without_end(self):
        self.assertFalse(passes([flip(0.51)], True))

    def test_a_token_that_nobody_thought_of_is_wrong(self):
        for jumps in (False, True):
            self.assertFalse(passes([(answer(), answer(["a", "y", "y"]))], jumps))


if __name__ == "__main__":
    unittest.main()
