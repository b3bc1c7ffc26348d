"""Recorded steps played again: what the coordinator notices, and what a program is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hvdtune.timeline.replay import changes
from hvdtune.timeline.replay import play as replay
from hvdtune.timeline.replay.play import PRIOR_OVERLAP, Rules, play
from hvdtune.timeline.replay.program import Costs, Play, Program

MS = 1e6
MIB = 1 << 20
#: Every batch takes 1 ms and 1 ms more for each MiB; nothing else takes any time.
COSTS = Costs(MS, 0.0, MS / MIB, closing=0, beginning=0, gap=0, waking=0, while_busy=False)


def step(submit: list[float], waits: list[tuple[float, list[int]]], compute: float) -> Program:
    """Times in ms."""
    plan = tuple((at * MS, np.array(needs, int)) for at, needs in waits)
    return Program(np.array(submit) * MS, plan, compute * MS)


def plays(*programs: Program, size: int = MIB) -> list[list[Play]]:
    """One step of these ranks, with tensors of that size."""
    count = len(programs[0].submit)
    return [
        [
            Play(
                np.arange(count),
                np.full(count, size),
                np.zeros(count, int),
                programs,
                (),
                0.0,
                0,
                reducing=np.ones(count, bool),
            )
        ]
    ]


def milliseconds(stretches: list[list[Play]], threshold: float, cycle: float) -> float:
    return play(stretches, Rules(threshold, cycle * MS, COSTS)).mean() / MS


def test_what_is_full_is_noticed_when_the_coordinator_looks():
    """It collects from 2 ms on, and sleeps until the cycle is over or a rank is blocked."""
    whole = plays(step([2, 4, 6, 8], [(20, [0, 1, 2, 3])], 20))
    # Full from 4 ms on. A cycle of 5 ms lets it look at 7: two tensors take 3 ms, and again.
    assert milliseconds(whole, 2 * MIB, 5) == pytest.approx(20)
    # With one of 50 ms it looks when the rank waits, and two batches of two follow.
    assert milliseconds(whole, 2 * MIB, 50) == pytest.approx(20 + 2 * 3)


def test_the_last_of_a_step_is_noticed_when_the_coordinator_looks():
    whole = plays(step([2, 4], [(20, [0, 1])], 20))
    assert milliseconds(whole, 64 * MIB, 5) == pytest.approx(20)
    assert milliseconds(whole, 64 * MIB, 50) == pytest.approx(20 + 3)
    # Who is blocked wakes it with every tensor that comes.
    late = step([2, 18], [(20, [0, 1])], 20)
    both = plays(step([2, 4], [(10, [0, 1])], 20), late)
    assert milliseconds(both, 64 * MIB, 50) == pytest.approx((30 + 20) / 2)


def test_one_tensor_that_is_full_by_itself_leaves_at_once():
    whole = plays(step([2, 4, 6], [(20, [0, 1, 2])], 20))
    assert milliseconds(whole, 0, 50) == pytest.approx(20)


def burst(last: float) -> Program:
    """Five tensors at once after 30 ms of computing; the last of them so many ms later."""
    return step([30, 30.1, 30.2, 30.3, 30.3 + last], [(30.4 + last, [0, 1, 2, 3, 4])], 32 + last)


def test_gradients_that_come_at_once_do_so_in_steps_that_are_interrupted_too():
    """A rank that was kept from submitting for 5 ms has no other program."""
    usual, interrupted = plays(burst(0), burst(0)), plays(burst(0), burst(5))
    stretches = usual * 4 + interrupted
    changed, _ = changes.overlapped()(stretches, Rules(64 * MIB, MS, COSTS))
    for [one] in changed:
        for program in one.programs:
            # Evenly over the last two thirds of what was computed before.
            assert program.submit[0] / MS == pytest.approx(30 * (1 / 3 + 2 / 3 / 5))
            assert program.submit.max() / MS == pytest.approx(30)


def test_gradients_that_come_one_by_one_stay_where_they_are():
    spread = step([6, 12, 18, 24, 30], [(30, [0, 1, 2, 3, 4])], 32)
    [[one]], _ = changes.overlapped()(plays(spread), Rules(64 * MIB, MS, COSTS))
    assert one.programs[0].submit.tolist() == spread.submit.tolist()


def test_what_comes_first_is_computed_where_the_first_layer_was():
    """Two tensors a layer, submitted together, and 4 ms of computing for each layer."""
    whole = plays(step([14, 14, 18, 18, 22, 22, 26], [(27, list(range(7)))], 27))
    [[one]], _ = changes.submitted_first(6)(whole, Rules(64 * MIB, MS, COSTS))
    assert (one.programs[0].submit / MS).tolist() == [18, 18, 22, 22, 26, 26, 14]


def ridge(waited: float, overlapped: float, measured: float) -> float:
    """What is lost where CPUs are not scarce."""
    return waited * overlapped / (overlapped**2 + (PRIOR_OVERLAP * measured) ** 2)


def contended(
    waiting: list[float], work: tuple[tuple[float, float], ...] = (), beside: float = 0.0
) -> changes.Bench:
    """One rank with eight tensors that leave one by one, 2 ms each, while it computes."""
    [[one]] = plays(step([2, 3, 4, 5, 6, 7, 8, 9], [(30, list(range(8)))], 30))
    alone = tuple((np.array([at]), 2 * MS) for at in range(8))
    one = replace(one, recorded=alone, measured=30 * MS, waiting=np.array(waiting) * MS, work=work)
    return changes.Bench([[one]], Rules(0, MS, COSTS, beside=beside * MS), 1.0)


def test_a_program_that_waited_for_a_cpu_gets_it_when_batches_take_less_of_it():
    """Eight batches take 16 ms of 30, all hidden. As three they take 11 ms."""
    assert contended([]).gain(changes.threshold(4 * MIB)) == pytest.approx(0, abs=0.001)
    waited = contended([8])
    assert waited.base == pytest.approx(30 * MS)  # it waited in the recording, too
    assert waited.gain(changes.threshold(4 * MIB)) == pytest.approx(ridge(8, 16, 30) * 5 / 30)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_trials_that_change_nothing_more_are_the_last(size, monkeypatch):
    seen = set()

    def slower(one: Play, members: list[int]) -> float:
        seen.add(one.programs[0].compute)
        return one.programs[0].compute / (30 * MS)

    def gains() -> list[float]:
        sample = contended([8])
        asked = replace(sample.rules, slower=slower)
        return [sample.gain(changes.threshold(size * MIB)),
                sample.gain(lambda s, _: changes.threshold(size * MIB)(s, asked))]  # fmt: skip

    found = gains()
    monkeypatch.setattr(replay, "SETTLED", -1.0)  # never
    assert gains() == pytest.approx(found, abs=1e-8)
    # A rule is asked about the programs of its trial.
    assert (len(seen) > 1) == (size > 1)


def test_no_step_is_quicker_than_the_work_of_its_cpus():
    free = contended([14]).gain(changes.threshold(4 * MIB))
    assert free == pytest.approx(ridge(14, 16, 30) * 5 / 30)
    # Computing keeps the CPUs busy for 25.8 of 30 ms, and batches for a quarter of their time.
    limited = contended([14], ((25.8 * MS, 0.25),))
    assert limited.base == pytest.approx(30 * MS)
    gain = limited.gain(changes.threshold(4 * MIB))
    assert gain == pytest.approx(1 - (25.8 + 11 / 4) / 30)
    # Where that is more than was recorded, it is overestimated, and counts for so much less.
    over = contended([14], ((56 * MS, 0.5),))
    assert over.base == pytest.approx(30 * MS)
    assert over.gain(changes.threshold(4 * MIB)) == pytest.approx(1 - (56 + 11 / 2) / (56 + 16 / 2))


def test_standing_behind_a_submission_is_no_computing():
    """Each batch takes the program's CPU as soon as it is submitted: it never comes to wait."""
    [[one]] = plays(step([10, 12, 14, 16], [(18, [0, 1, 2, 3])], 20))
    alone = tuple((np.array([at]), 2 * MS) for at in range(4))
    one = replace(one, recorded=alone, measured=20 * MS, waiting=np.array([7.2 * MS]))
    sample = changes.Bench([[one]], Rules(0, MS, COSTS), 1.0)
    assert sample.base == pytest.approx(20 * MS)
    [[changed]], _ = changes.overlapped()(sample.stretches, sample.rules)
    assert changed.programs[0].compute == pytest.approx((20 - 7.2) * MS)
    assert changed.overlapped.tolist() == [0]
    # What else is gained is what it is where nobody stood.
    free = replace(one, waiting=np.zeros(1), programs=changed.programs)
    shorter = changes.Bench([[free]], Rules(0, MS, COSTS), 1.0)
    unchanged = play([[free]], shorter.rules).mean()
    gain = 1 - unchanged / (20 * MS)
    assert sample.gain(changes.overlapped()) == pytest.approx(gain, rel=0.1)


def test_what_short_batches_take_beside_their_duration_is_taken_from_programs():
    """Eight batches take 16 ms, and 1 ms of a CPU more each; as three they take 11 and 3."""
    waited = contended([8], beside=1.0)
    assert waited.base == pytest.approx(30 * MS)
    assert waited.stretches[0][0].overlapped.tolist() == pytest.approx([24 * MS])
    gain = ridge(8, 24, 30) * (24 - 14) / 30
    assert waited.gain(changes.threshold(4 * MIB)) == pytest.approx(gain)
    # Computing keeps the CPUs busy for 24 of 30 ms, and batches for a quarter of their time.
    limited = contended([24], ((24 * MS, 0.25),), beside=1.0)
    assert limited.base == pytest.approx(30 * MS)
    assert limited.gain(changes.threshold(4 * MIB)) == pytest.approx(1 - (24 + 14 / 4) / 30)


def lost_of_three(gaps: list[float | None]) -> list[float]:
    """What batches take of the speed of a program that came to its wait so many ms after its last
    submission, in each of three steps. None: when all was done, so that nothing is recorded."""
    alone = tuple((np.array([at]), 5 * MS) for at in range(2))
    whole = []
    for gap in gaps:
        waits = [] if gap is None else [(4 + gap, [0, 1])]
        last = waits[-1][0] if waits else 4.0
        [[one]] = plays(step([2, 4], [*waits, (last, [0, 1])], 30), size=4 * MIB)
        waiting = np.array([7.0 if gap is None else max(gap - 1, 0)]) * MS
        whole.append(replace(one, recorded=alone, measured=33 * MS, waiting=waiting))
    sample = changes.Bench([whole], Rules(0, MS, COSTS), 1.0)
    return [float(one.lost[0]) for one in sample.stretches[0]]


def test_what_programs_stand_behind_their_last_submissions_they_do_not_lose_elsewhere():
    """In one of the steps the program came to its wait 6 ms later, for want of a CPU."""
    assert lost_of_three([1, 7, 1]) == pytest.approx([0, 0, 0], abs=0.01)


def test_steps_without_a_wait_do_not_tell_how_long_programs_compute_before_it():
    same = lost_of_three([5, 5, 5])
    assert min(same) > 0.05
    first, _, last = lost_of_three([5, None, 5])
    assert [first, last] == pytest.approx([same[0], same[2]])


def test_ranks_without_a_part_in_the_step_change_nothing():
    [[one]] = plays(
        step([2, 3], [(2.5, [0]), (4, [1]), (4, [])], 30),
        step([np.inf, np.inf], [(0, [])], 30),
    )
    alone = tuple((np.array([at]), 2 * MS) for at in range(2))
    one = replace(one, recorded=alone, measured=33 * MS, waiting=np.array([8 * MS, 0]))
    sample = changes.Bench([[one]], Rules(0, MS, COSTS), 1.0)
    assert np.isfinite(sample.gain(changes.overlapped()))


def test_waiting_without_overlap_is_not_for_batches():
    """Hardly anything runs beside the program, which waits for a CPU all the same."""
    [[one]] = plays(step([2, 3], [(2.5, [0]), (4, [1])], 30))
    alone = tuple((np.array([at]), 2 * MS) for at in range(2))
    one = replace(one, recorded=alone, measured=33 * MS, waiting=np.array([8 * MS]))
    sample = changes.Bench([[one]], Rules(0, MS, COSTS), 1.0)
    without = changes.Bench([[replace(one, waiting=np.zeros(0))]], Rules(0, MS, COSTS), 1.0)
    hidden = changes.overlapped()
    assert sample.gain(hidden) == pytest.approx(without.gain(hidden), rel=0.2)
