"""What may be moved, and the way between settings and points of the cube."""

import random

import numpy as np
import pytest
from support.models.simulated_training import KEYS, MIB, full_space

from hvdtune.autotune.search import space
from hvdtune.autotune.search.space import OFF_CELL, Dimension, Space
from hvdtune.settings import knobs

FUSION = Dimension(
    "fusion_threshold", "log", MIB / 4, 256 * MIB, "off", 4096, first=16 * MIB, acts_on="longer"
)
CYCLE = Dimension("cycle_time", "log", 0.1, 25.0, first=0.1)
CHUNK = Dimension(
    "chunk_size", "log", 64 * 1024, 4 * MIB, "auto", 4096, first=MIB // 4, acts_on="longer"
)
FLAG = Dimension("hierarchical_allreduce", "boolean", 0, 1)
COUNT = Dimension("num_nccl_streams", "linear", 1, 9, quantum=1)
EVERY_KIND = Space((FUSION, CYCLE, CHUNK, FLAG, COUNT))


def test_built_from_the_table_of_settings() -> None:
    assert full_space() == Space((FUSION, CYCLE, CHUNK))


def test_fixed_settings_are_left_out() -> None:
    assert full_space({"HOROVOD_CYCLE_TIME": "3"}).keys == ("fusion_threshold", "chunk_size")
    everything = {knobs.KNOBS[key].env: "1MB" for key in KEYS if key != "cycle_time"}
    assert full_space({**everything, "HOROVOD_CYCLE_TIME": "1"}).dimensions == ()


def test_settings_that_cannot_act_are_left_out() -> None:
    assert space.build(knobs.from_environ({}), ["cycle_time", "stall_check_time"]).keys == (
        "cycle_time",
    )


def test_defaults_are_in_the_space() -> None:
    searched = full_space()
    defaults = space.shipped_defaults(searched)
    assert defaults == {"fusion_threshold": 128 * MIB, "cycle_time": 1.0, "chunk_size": 0}
    assert searched.decode(searched.encode(defaults)) == defaults


def test_points_survive_the_round_trip() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        values = EVERY_KIND.decode([rng.random() for _ in range(EVERY_KIND.width)])
        assert EVERY_KIND.decode(EVERY_KIND.encode(values)) == values


def test_decoded_values_lie_in_their_ranges() -> None:
    rng = random.Random(2)
    for _ in range(2000):
        values = EVERY_KIND.decode([rng.uniform(-0.5, 1.5) for _ in range(EVERY_KIND.width)])
        assert values["fusion_threshold"] == 0 or MIB / 4 <= values["fusion_threshold"] <= 256 * MIB
        assert 0.1 <= values["cycle_time"] <= 25
        assert values["chunk_size"] == 0 or 64 * 1024 <= values["chunk_size"] <= 4 * MIB
        assert isinstance(values["hierarchical_allreduce"], bool)
        assert values["num_nccl_streams"] in range(1, 10)
        assert values["fusion_threshold"] % 4096 == 0


def test_equal_ratios_are_equal_distances() -> None:
    one, two, four = (CYCLE.encode(value)[0] for value in (1.0, 2.0, 4.0))
    assert two - one == pytest.approx(four - two)
    assert CYCLE.encode(0.1) == (0.0,)
    assert CYCLE.encode(25.0)[0] == pytest.approx(1.0)


def test_off_is_the_low_end_of_the_axis_with_a_flag() -> None:
    assert FUSION.width == 2
    assert FUSION.encode(0) == (0.0, 1.0)
    assert FUSION.encode(MIB / 4) == (0.0, 0.0)
    assert FUSION.decode([0.7, 1 - 0.9 * OFF_CELL]) == 0
    assert FUSION.decode([0.7, 1 - 1.1 * OFF_CELL]) != 0


def test_zero_has_a_flag_where_the_engine_chooses() -> None:
    assert CHUNK.width == 2
    assert CHUNK.encode(0) == (0.5, 1.0)
    assert CHUNK.encode(64 * 1024) == (0.0, 0.0)
    assert CHUNK.decode([0.9, 1.0]) == 0
    assert EVERY_KIND.columns == ("axis", "off", "axis", "axis", "auto", "flag", "axis")
    assert EVERY_KIND.groups == [[0, 1], [2], [3, 4], [5], [6]]


def test_any_points_become_points_of_settings() -> None:
    rng = np.random.default_rng(4)
    points = EVERY_KIND.settled(rng.uniform(-0.2, 1.2, (500, EVERY_KIND.width)))
    for point in points:
        values = EVERY_KIND.decode(point)
        encoded = EVERY_KIND.encode(values)
        flags = [at for at, kind in enumerate(EVERY_KIND.columns) if kind != "axis"]
        assert [encoded[at] for at in flags] == [point[at] for at in flags]
        assert encoded[:3] == pytest.approx(point[:3], abs=0.01)
    assert 0.01 < (points[:, 1] == 1).mean() < 0.4
    assert 0.4 < (points[:, 4] == 1).mean() < 0.6


def test_probes_change_one_setting_each_and_stay_out_of_the_centres_cell() -> None:
    centre = {
        "fusion_threshold": 128 * MIB, "cycle_time": 1.0, "chunk_size": 0,
        "hierarchical_allreduce": False, "num_nccl_streams": 1,
    }  # fmt: skip
    probes = EVERY_KIND.probes(centre, 3, 5)
    assert probes == EVERY_KIND.probes(centre, 3, 5)
    assert probes != EVERY_KIND.probes(centre, 3, 6)
    # One value of every setting first; a flag has only one other.
    assert [next(iter(one)) for one in probes] == [
        *EVERY_KIND.keys,
        *(key for key in EVERY_KIND.keys if key != "hierarchical_allreduce"),
        "chunk_size",
    ]
    assert all(len(one) == 1 for one in probes)
    thirds = {
        key: {
            int(3 * dimension.encode(one[key])[0])
            for one in probes if key in one
        }
        for key, dimension in zip(EVERY_KIND.keys, EVERY_KIND.dimensions, strict=True)
    }  # fmt: skip
    assert thirds["fusion_threshold"] == {0, 1}
    assert thirds["cycle_time"] == {0, 2}
    assert thirds["chunk_size"] == {0, 1, 2}  # nothing of the axis is known of "the engine chooses"
    assert thirds["num_nccl_streams"] == {1, 2}
    assert all(one.get("fusion_threshold") != 0 for one in probes)


LEAST = Dimension("nccl_min_ctas", "log", 1, 32, "auto", 1, at_most="nccl_max_ctas")
MOST = Dimension("nccl_max_ctas", "log", 1, 32, "auto", 1)


def test_what_exceeds_another_setting_is_lowered_to_it() -> None:
    both = Space((LEAST, MOST))
    assert space.build(knobs.from_environ({}), both.keys) == both
    rng = random.Random(4)
    for _ in range(500):
        values = both.decode([rng.random() for _ in range(both.width)])
        assert not values["nccl_max_ctas"] or values["nccl_min_ctas"] <= values["nccl_max_ctas"]
    assert both.allowed({"nccl_min_ctas": 8, "nccl_max_ctas": 4}) == {
        "nccl_min_ctas": 4, "nccl_max_ctas": 4,
    }  # fmt: skip
    automatic = {"nccl_min_ctas": 8, "nccl_max_ctas": 0}
    assert both.allowed(automatic) == automatic
    assert Space.from_json(both.to_json()) == both


@pytest.mark.parametrize(
    ("fixed", "key", "low", "high"),
    [
        ({"NCCL_MAX_CTAS": "8"}, "nccl_min_ctas", 1, 8),
        ({"NCCL_MAX_CTAS": "64"}, "nccl_min_ctas", 1, 32),
        ({"NCCL_MAX_CTAS": "0"}, "nccl_min_ctas", 1, 32),
        ({"NCCL_MIN_CTAS": "8"}, "nccl_max_ctas", 8, 32),
    ],
)
def test_a_fixed_setting_bounds_the_other(
    fixed: dict[str, str], key: str, low: int, high: int
) -> None:
    [only] = space.build(knobs.from_environ(fixed), [key]).dimensions
    assert (only.key, only.low, only.high) == (key, low, high)


def test_what_a_fixed_setting_leaves_no_room_for_is_left_out() -> None:
    settings = knobs.from_environ({"NCCL_MAX_CTAS": "1"})
    assert space.build(settings, ["nccl_min_ctas", "nccl_max_ctas"]).dimensions == ()


def test_settings_outside_the_range_keep_their_distance() -> None:
    assert CYCLE.encode(100.0)[0] > 1.2
    assert CYCLE.decode(CYCLE.encode(100.0)) == 25.0
    assert CYCLE.encode(0)[0] < 0


def test_no_batch_has_more_bytes_than_a_step() -> None:
    searched = full_space()
    threshold, cycle, chunk = searched.within(MIB).dimensions
    assert (threshold.low, threshold.high, chunk.high) == (MIB / 4, MIB, MIB)
    assert cycle == searched.dimensions[1]
    # All that is larger is one and the same point.
    assert threshold.encode(128 * MIB) == threshold.encode(MIB) == (1.0, 0.0)
    assert threshold.encode(0) != threshold.encode(MIB / 4)
    assert searched.within(1 << 40) == searched.within(0) == searched
    # Something is left of an axis that begins beyond the step.
    assert searched.within(1000).dimensions[0].high == MIB / 2


@pytest.mark.parametrize(("step_bytes", "acts"), [(MIB, True), (64 * MIB, True), (65 * MIB, False)])
def test_what_acts_on_short_batches_only_is_left_out_of_long_steps(
    step_bytes: int, acts: bool
) -> None:
    keys = ["chunk_size", "one_shot_limit"]
    searched = space.build(knobs.from_environ({}), keys)
    assert searched.within(step_bytes).keys == tuple(keys if acts else keys[:1])
    alone = space.build(knobs.from_environ({}), keys[1:])
    assert alone.within(65 * MIB) == alone


def test_the_first_probes_are_what_was_best_elsewhere() -> None:
    searched = full_space()
    probes = searched.probes(space.shipped_defaults(searched), 3, 1)
    first = {"fusion_threshold": 16 * MIB}, {"cycle_time": 0.1}, {"chunk_size": MIB / 4}
    assert tuple(probes[:3]) == first
    # It lies in the third of the present value: other thirds tell more.
    beside = {**space.shipped_defaults(searched), "cycle_time": 0.2}
    assert searched.probes(beside, 3, 1)[1]["cycle_time"] > 0.6


def test_the_space_survives_json() -> None:
    assert Space.from_json(EVERY_KIND.to_json()) == EVERY_KIND


def test_a_point_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="has 7 coordinates: 2"):
        EVERY_KIND.decode([0.1, 0.2])


def test_a_tunable_setting_without_a_range_is_a_mistake_of_the_table() -> None:
    knob = knobs.Knob("width", "HVDTUNE_WIDTH", "int", 1, "Help.", tunable=True)
    with pytest.raises(ValueError, match="'width' has no range"):
        space.build(knobs.from_environ({}), ["width"], {"width": knob})
