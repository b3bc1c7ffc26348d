"""Where settings come from: command line, config file, environment, in this order."""

from __future__ import annotations

import json

import pytest
from support.jobs.launcher import SHOW_ENVIRONMENT, environments, launch

from hvdtune.launch.config_file import read_config_file
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.settings import choose
from hvdtune.settings.knobs import KNOBS, KnobError

FILE = """\
controller: gloo
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 2.5
  cache_capacity: 2048
  hierarchical_allreduce: false
autotune:
  enabled: true
  log_file: log.csv
  steps_per_sample: 5
timeline:
  filename: t.json
  mark_cycles: yes
stall_check:
  warning_time_seconds: 120
library_options:
  thread_affinity: [0, 1]
logging:
  level: info
  with_timestamp: false
  hide_timestamp: true
"""


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "settings.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_every_section_is_read(config):
    read = read_config_file(config(FILE))
    assert read.values == {
        "controller": "gloo",
        "fusion_threshold": 32 * 2**20,
        "cycle_time": 2.5,
        "cache_capacity": 2048,
        "hierarchical_allreduce": False,
        "autotune": True,
        "autotune_log": "log.csv",
        "autotune_steps_per_sample": 5,
        "timeline": "t.json",
        "timeline_mark_cycles": True,
        "stall_check_disable": False,
        "stall_check_time": 120.0,
        "thread_affinity": (0, 1),
        "log_level": "INFO",
        "log_hide_time": True,
    }
    assert [*read.others] == ["logging.hide_timestamp"]


def test_every_key_of_the_table_can_be_read(config):
    for knob in KNOBS.values():
        if knob.yaml is None or knob.default in (None, (), ""):
            continue
        section, _, key = knob.yaml.rpartition(".")
        default = knob.default != knob.yaml_inverted if knob.kind == "bool" else knob.default
        value = json.dumps(f"{default}B" if knob.kind == "size" else default)
        read = read_config_file(config(f"{section}:\n  {key}: {value}\n"))
        assert read.values[knob.key] == knob.default, knob.key


def test_a_section_without_enabled(config):
    read = read_config_file(config("autotune:\n  log_file: x\nstall_check:\n  enabled: false\n"))
    assert read.values == {"autotune": False, "autotune_log": "x", "stall_check_disable": True}


def test_empty_files_sections_and_values_say_nothing(config):
    assert read_config_file(config("")).values == {}
    assert read_config_file(config("autotune:\nparams: {}\ntimeline:\n  filename:\n")).values == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("params:\n  cycle_time_ms: fast\n", ["params.cycle_time_ms in", "'fast'", "ms"]),
        ("params:\n  cycle_time_ms: -1\n", ["params.cycle_time_ms in", "-1"]),
        ("params:\n  cache_capacity:\n    a: 1\n", ["params.cache_capacity in", "section"]),
        ("controller: pigeon\n", ["controller in", "'pigeon'", "mpi, gloo"]),
        ("params: 5\n", ["params in", "5"]),
        ("- a\n- b\n", ["sections"]),
        ("a: [\n", ["not YAML"]),
    ],
)
def test_what_is_not_accepted_is_named(config, text, words):
    path = config(text)
    with pytest.raises((KnobError, LaunchError)) as error:
        read_config_file(path)
    for word in [path, *words]:
        assert word in str(error.value)


def test_command_line_before_file_before_environment(config):
    file = read_config_file(config("params:\n  cycle_time_ms: 2\n  cache_capacity: 3\n"))
    environ = {
        "HOROVOD_CYCLE_TIME": "7",
        "HOROVOD_CACHE_CAPACITY": "8",
        "HOROVOD_FUSION_THRESHOLD": "9",
    }
    choice = choose({"cycle_time": ("--cycle-time-ms", 1.0)}, file, environ)
    assert (choice.values["cycle_time"], choice.sources["cycle_time"]) == (1.0, "--cycle-time-ms")
    assert choice.values["cache_capacity"] == 3
    assert choice.sources["cache_capacity"] == f"{file.path}: params.cache_capacity"
    assert choice.values["fusion_threshold"] == 9
    assert choice.sources["fusion_threshold"] == "environment: HOROVOD_FUSION_THRESHOLD"
    # What the user exported is left as it is.
    assert choice.variables() == {"HOROVOD_CYCLE_TIME": "1.0", "HOROVOD_CACHE_CAPACITY": "3"}


def test_a_malformed_variable_does_not_matter_where_a_flag_overrides_it():
    environ = {"HOROVOD_CYCLE_TIME": "soon"}
    assert choose({"cycle_time": ("--cycle-time-ms", 1.0)}, None, environ).values["cycle_time"] == 1
    with pytest.raises(KnobError, match="HOROVOD_CYCLE_TIME is 'soon'"):
        choose({}, None, environ)


def test_flags_that_need_another_are_not_exported_without_it():
    flags = {"autotune_log": ("--autotune-log-file", "log.csv")}
    alone = choose(flags, None, {})
    assert alone.variables() == {}
    assert alone.notices == ["--autotune-log-file has no effect without --autotune."]
    with_variable = choose(flags, None, {"HOROVOD_AUTOTUNE": "1"})
    assert with_variable.variables() == {"HOROVOD_AUTOTUNE_LOG": "log.csv"}
    assert with_variable.notices == []


def test_what_works_between_hosts_is_of_no_effect_on_one():
    flags = {"hierarchical_allreduce": ("--hierarchical-allreduce", True)}
    assert choose(flags, None, {}).notices == []
    alone = choose(flags, None, {}, one_host=True)
    assert alone.notices == ["--hierarchical-allreduce has no effect: all ranks are on one host."]
    assert alone.variables() == {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}
    flags = {"hierarchical_allreduce": ("--no-hierarchical-allreduce", False)}
    assert choose(flags, None, {}, one_host=True).notices == []


def test_tcp_is_for_nccl_between_hosts():
    flags = {"tcp": ("--tcp", True)}
    choice = choose(flags, None, {})
    assert (choice.notices, choice.variables()) == ([], {"NCCL_IB_DISABLE": "1"})
    alone = choose(flags, None, {}, one_host=True)
    assert alone.notices == ["--tcp has no effect: all ranks are on one host."]


def test_a_starting_point_fixes_nothing_and_wins_over_the_default_only(config):
    file = read_config_file(config("autotune: {enabled: true, start: {cycle_time_ms: 100}}\n"))
    choice = choose({"fusion_threshold": ("--fusion-threshold-mb", 0)}, file, {})
    assert choice.values["cycle_time"] == 100.0
    assert "cycle_time" not in choice.sources
    assert choice.starts["cycle_time"].endswith(": autotune.start")
    assert choice.variables()["HVDTUNE_AUTOTUNE_START"] == "cycle_time=100.0"
    assert choice.notices == []
    start = {"autotune_start": ("--autotune-start", (("fusion_threshold", 5),))}
    flag = {"autotune": ("--autotune", True), "fusion_threshold": ("--fusion-threshold-mb", 0)}
    choice = choose({**start, **flag}, None, {})
    assert choice.values["fusion_threshold"] == 0
    assert choice.notices == [
        "--autotune-start says nothing for fusion_threshold: --fusion-threshold-mb fixes it."
    ]


@pytest.mark.parametrize("position", ["before", "after"])
def test_a_flag_wins_wherever_the_config_file_is_named(tmp_path, config, position):
    file = ["--config-file", config(FILE)]
    flag = ["--cycle-time-ms", "9"]
    words = flag + file if position == "before" else file + flag
    ended = launch(
        tmp_path, ["run", "-np", "1", *words], SHOW_ENVIRONMENT, env={"HOROVOD_CYCLE_TIME": "7"}
    )
    [worker] = environments(ended)
    assert worker["HOROVOD_CYCLE_TIME"] == "9.0"
    assert worker["HOROVOD_FUSION_THRESHOLD"] == str(32 * 2**20)
    assert worker["HOROVOD_AUTOTUNE_LOG"] == "log.csv"
    assert "logging.hide_timestamp is no known setting" in ended.stderr


def rows(ended):
    assert ended.status == 0, ended.stderr
    return {row["setting"]: row for row in json.loads(ended.stdout)}


def test_config_shows_value_unit_source_and_what_is_fixed(tmp_path, config):
    env = {"HOROVOD_FUSION_THRESHOLD": "64MB", "HVDTUNE_SECRET": "hush"}
    file = config("params:\n  cache_capacity: 3\n")
    ended = launch(tmp_path, ["config", "--json", "--config-file", file], env=env)
    shown = rows(ended)
    assert set(shown) == {knob.key for knob in KNOBS.values() if not knob.internal}
    fusion = shown["fusion_threshold"]
    assert (fusion["value"], fusion["unit"], fusion["fixed"]) == (64 * 2**20, "bytes", True)
    assert fusion["source"] == "environment: HOROVOD_FUSION_THRESHOLD"
    assert (shown["cycle_time"]["source"], shown["cycle_time"]["fixed"]) == ("default", False)
    assert shown["cache_capacity"]["source"] == f"{file}: params.cache_capacity"
    assert "hush" not in ended.stdout


def test_config_as_a_table(tmp_path):
    ended = launch(tmp_path, ["config"], env={"HOROVOD_CYCLE_TIME": "2.5"})
    lines = {line.split()[0]: line for line in ended.stdout.splitlines()}
    assert set(lines) == {"setting", *(k.key for k in KNOBS.values() if not k.internal)}
    assert "2.5" in lines["cycle_time"]
    assert "fixed" in lines["cycle_time"]
    assert "134217728 (128 MiB)" in lines["fusion_threshold"]
    assert "may move it" in lines["fusion_threshold"]


def test_config_names_what_is_malformed(tmp_path):
    ended = launch(tmp_path, ["config"], env={"HOROVOD_CYCLE_TIME": "soon"})
    assert (ended.status, ended.stdout) == (2, "")
    assert ended.stderr.startswith("hvdtune config: HOROVOD_CYCLE_TIME is 'soon'")
    assert ended.stderr.count("\n") == 1
