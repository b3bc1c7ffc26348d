import pytest

from hvdtune.settings import knobs
from hvdtune.settings.knobs import KNOBS, KnobError, from_environ, parse, to_text


def test_defaults_come_from_nowhere():
    settings = from_environ({})
    assert settings.fusion_threshold == 128 * 2**20
    assert settings.cycle_time == 1.0
    assert settings.timeline is None
    assert settings.source("cycle_time") == "default"
    assert not settings.is_fixed("cycle_time")


def test_a_present_variable_fixes_its_setting_even_with_the_default_value():
    settings = from_environ({"HOROVOD_CYCLE_TIME": "1"})
    assert settings.cycle_time == 1.0
    assert settings.source("cycle_time") == "HOROVOD_CYCLE_TIME"
    assert settings.is_fixed("cycle_time")
    assert not settings.is_fixed("fusion_threshold")


def test_an_empty_variable_counts_as_absent():
    assert not from_environ({"HOROVOD_CYCLE_TIME": " "}).is_fixed("cycle_time")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("65536", 65536),
        ("64MB", 64 * 2**20),
        ("64 mib", 64 * 2**20),
        ("1GiB", 2**30),
        ("1.5k", 1536),
        ("10B", 10),
    ],
)
def test_sizes(text, value):
    assert from_environ({"HOROVOD_FUSION_THRESHOLD": text}).fusion_threshold == value


def test_a_flag_in_megabytes_multiplies_plain_numbers_only():
    knob = KNOBS["fusion_threshold"]
    assert parse(knob, "32", "--fusion-threshold-mb", knob.flag_multiplier) == 32 * 2**20
    assert parse(knob, 0.5, "--fusion-threshold-mb", knob.flag_multiplier) == 2**19
    assert parse(knob, "1GiB", "--fusion-threshold-mb", knob.flag_multiplier) == 2**30


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("2", True), ("0", False), ("-1", False), ("true", True), ("OFF", False)],
)
def test_booleans_are_on_above_zero(text, value):
    assert from_environ({"HOROVOD_AUTOTUNE": text}).autotune is value


@pytest.mark.parametrize(
    ("variable", "text", "wanted"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "64XB", "64MB"),
        ("HOROVOD_FUSION_THRESHOLD", "-1", "0 or more"),
        ("HOROVOD_FUSION_THRESHOLD", "1iB", "a size"),
        ("HOROVOD_FUSION_THRESHOLD", str(2**63), "a size"),
        ("HOROVOD_CYCLE_TIME", "5ms", "ms"),
        ("HOROVOD_CYCLE_TIME", "nan", "a number"),
        ("HOROVOD_CACHE_CAPACITY", "12 apples", "a whole number"),
        ("HOROVOD_CACHE_CAPACITY", "1_000", "a whole number"),
        ("HOROVOD_AUTOTUNE", "maybe", "1 or 0"),
        ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "1.1", "from 0 to 1"),
        ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "0", "1 or more"),
        ("HOROVOD_LOG_LEVEL", "loud", "TRACE, DEBUG"),
        ("HOROVOD_THREAD_AFFINITY", "0,,1", "commas"),
        ("HOROVOD_CONTROLLER", "carrier-pigeon", "mpi, gloo"),
        ("HVDTUNE_CHUNK_SIZE", "1K", "64 KiB to 4 MiB"),
        ("HVDTUNE_REDUCTION_THREADS", "17", "auto, or a whole number, from 0 to 16"),
        ("HVDTUNE_REDUCTION_THREADS", "-1", "auto, or a whole number"),
        ("HVDTUNE_REDUCTION_THREADS", "two", "auto, or a whole number"),
    ],
)
def test_a_bad_value_names_setting_value_and_what_is_accepted(variable, text, wanted):
    with pytest.raises(KnobError) as error:
        from_environ({variable: text})
    message = str(error.value)
    assert message.startswith(f"{variable} is {text!r}")
    assert wanted in message


@pytest.mark.parametrize(("least", "most"), [("4", "4"), ("8", "0"), ("0", "1")])
def test_a_least_value_within_the_most_is_taken(least, most):
    knobs.check_together(from_environ({"NCCL_MIN_CTAS": least, "NCCL_MAX_CTAS": most}).as_dict())


def test_a_least_value_above_the_most_is_one_sentence():
    settings = from_environ({"NCCL_MIN_CTAS": "8", "NCCL_MAX_CTAS": "4"})
    with pytest.raises(KnobError) as error:
        knobs.check_together(settings.as_dict())
    assert str(error.value) == (
        "NCCL_MIN_CTAS is 8, more than NCCL_MAX_CTAS, which is 4: give at most 4, or 0 to leave "
        "the choice to NCCL."
    )


def test_zero_leaves_the_chunk_size_to_the_engine():
    assert from_environ({"HVDTUNE_CHUNK_SIZE": "0"}).chunk_size == 0


@pytest.mark.parametrize(("text", "value"), [("Auto", "auto"), ("0", 0), ("16", 16)])
def test_reduction_threads_are_a_number_or_left_to_the_engine(text, value):
    assert from_environ({}).reduction_threads == 0
    assert from_environ({"HVDTUNE_REDUCTION_THREADS": text}).reduction_threads == value
    assert to_text(KNOBS["reduction_threads"], value) == str(value)


def test_choices_ignore_case_and_lists_are_split():
    settings = from_environ({"HOROVOD_LOG_LEVEL": "debug", "HOROVOD_THREAD_AFFINITY": "0, 2,4"})
    assert settings.log_level == "DEBUG"
    assert settings.thread_affinity == (0, 2, 4)


def test_settings_are_read_only_and_reject_unknown_names():
    settings = from_environ({})
    with pytest.raises(AttributeError, match="read-only"):
        settings.cycle_time = 5
    with pytest.raises(AttributeError, match="no_such_setting"):
        _ = settings.no_such_setting


def test_secrets_are_not_shown():
    assert "hush" not in repr(from_environ({"HVDTUNE_SECRET": "hush"}))


def test_what_is_written_to_the_environment_reads_back():
    values = {
        "fusion_threshold": 12345,
        "cycle_time": 20.0,
        "autotune": True,
        "stall_check_disable": False,
        "thread_affinity": (1, 3),
        "log_level": "ERROR",
        "timeline": "t.json",
    }
    environ = {KNOBS[key].env: to_text(KNOBS[key], value) for key, value in values.items()}
    settings = from_environ(environ)
    assert {key: getattr(settings, key) for key in values} == values
    assert environ["HOROVOD_CYCLE_TIME"] == "20.0"


def test_a_starting_point_is_a_value_that_is_not_fixed():
    text = " cycle_time_ms=100, fusion_threshold_mb=0,chunk_size=1MB "
    settings = from_environ({"HOROVOD_AUTOTUNE": "1", "HVDTUNE_AUTOTUNE_START": text})
    assert (settings.cycle_time, settings.fusion_threshold) == (100.0, 0)
    assert settings.chunk_size == 2**20
    assert not settings.is_fixed("cycle_time")
    # Written for the workers, it reads back.
    written = to_text(KNOBS["autotune_start"], settings.autotune_start)
    assert parse(KNOBS["autotune_start"], written, "x") == settings.autotune_start
    mapping = {"cycle_time_ms": 100, "fusion_threshold_mb": 0, "chunk_size": "1MB"}
    assert parse(KNOBS["autotune_start"], mapping, "x") == settings.autotune_start


def test_a_starting_point_yields_to_what_is_fixed_and_needs_the_autotuner():
    start = {"HVDTUNE_AUTOTUNE_START": "cycle_time_ms=100"}
    assert from_environ(start).cycle_time == 1.0
    fixed = {**start, "HOROVOD_AUTOTUNE": "1", "HOROVOD_CYCLE_TIME": "3"}
    assert from_environ(fixed).cycle_time == 3.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cycle_time_ms", "give tunable settings and values, such as cycle_time_ms=100"),
        ("cycle_time_ms=", "give tunable settings and values"),
        ("cycle_time_ms=fast", "cycle_time_ms is 'fast', which is not accepted: give a number"),
        ("cycle_time_ms=-1", "from 0 to 10000"),
        ("cycle_time_ms=1,cycle_time=2", "'cycle_time' is given twice"),
        (
            "stall_check_time=5",
            "not a setting that the autotuner may move: give one of cache_capacity",
        ),
    ],
)
def test_a_starting_point_that_is_not_accepted(text, words):
    with pytest.raises(KnobError, match="HVDTUNE_AUTOTUNE_START") as caught:
        from_environ({"HVDTUNE_AUTOTUNE_START": text})
    assert words in str(caught.value)


def test_an_empty_store_is_not_an_absent_one():
    assert from_environ({}).autotune_store is None
    assert from_environ({"HVDTUNE_AUTOTUNE_STORE": " "}).autotune_store == ""


def test_every_row_of_the_table_is_consistent():
    seen: set[str] = set()
    for key, knob in KNOBS.items():
        assert key == knob.key
        assert key.isidentifier()
        for name in (knob.env, knob.yaml, *knob.flags, *knob.off_flags):
            assert name is None or name not in seen, name
            if name is not None:
                seen.add(name)
        if knob.default not in (None, "", ()):
            assert parse(knob, knob.default, knob.env) == knob.default
        has_range = knob.tunable and knob.kind != "bool"
        assert has_range == (knob.tune_range is not None) == (knob.scale is not None)
        assert knob.requires is None or knob.requires in KNOBS
        assert knob.help.endswith(".")
        assert knobs.accepted(knob)
        if knob.tune_range:
            for bound in knob.tune_range:
                parse(knob, int(bound) if knob.kind != "float" else bound, knob.env)
