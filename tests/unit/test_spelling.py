"""Near matches for names that are not known, in every place where a user writes one."""

from __future__ import annotations

import pytest

from hvdtune.cli.main import main
from hvdtune.launch.config_file import read_config_file
from hvdtune.settings import knobs
from hvdtune.settings.spelling import hint, nearest


@pytest.mark.parametrize(
    ("word", "names", "near"),
    [
        ("chek", ["summary", "check", "merge"], "check"),
        ("--nproc", ["-np", "--np", "--hosts"], "--np"),
        ("--output", ["--output-filename", "--verbose"], "--output-filename"),
        ("inof", ["WARNING", "INFO"], "INFO"),
        ("info", ["WARNING", "INFO"], "INFO"),
        ("--opne", ["--json", "--output"], None),
        ("frog", ["check", "merge"], None),
        ("t", ["top", "tune"], None),
        ("", ["top", "tune"], None),
        ("log", ["log-level", "log-hide-time"], None),
        ("anything", [], None),
    ],
)
def test_a_near_name_is_found_and_a_far_one_is_not(word, names, near):
    assert nearest(word, names) == near
    assert hint(word, names) == (f"; did you mean {near}?" if near else ".")


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("bech", "bench"),
        ("timelin check x", "timeline"),
        ("-np 2 python train.py", "hvdtune run -np"),
        ("--timeline-filename=t.json -np 2 python train.py", "hvdtune run --timeline-filename"),
        ("timeline chek x.json", "check"),
        ("autotune lst", "list"),
        ("autotune exprt 8c --format env", "export"),
        ("autotune export 8c --format evn", "env"),
        ("alias instal", "install"),
        ("bench --op alreduce", "allreduce"),
        ("bench --dtype flaot16", "float16"),
        ("bench --workload tinny", "tiny"),
        ("bench --workload tiny,vgg61", "vgg16"),
        ("tune -np 2 --workload restnet50", "resnet50"),
        ("run -np 2 --log-level inof python train.py", "INFO"),
        ("run -np 2 --overlap atuo python train.py", "auto"),
        ("run -np 2 --verbsoe python train.py --np 3", "--verbose"),
        ("run --nproc 2 python train.py", "--num-proc"),
        ("run -np 2 --fusion-treshold-mb 5 python train.py", "--fusion-threshold-mb"),
        ("run -np 2 --timeline_filename=t.json python train.py", "--timeline-filename"),
        ("run -np 2 --autotune --autotune-start cycle_tim_ms=3 python x.py", "cycle_time_ms"),
        ("tune --num-prc 2 -- python train.py --lr 2", "--num-proc"),
        ("timeline view a.json --stps 1:2", "--steps"),
        ("timeline summary a.json --rwos 3", "--rows"),
        ("doctor --require pytroch", "PyTorch"),
    ],
)
def test_a_misspelt_word_of_the_command_line_gets_a_near_match(line, near, capsys):
    try:
        status = main(line.split())
    except SystemExit as ended:
        status = ended.code
    said = capsys.readouterr().err
    assert status == 2
    assert f"; did you mean {near}?" in said
    assert len(said.splitlines()) == 1
    assert "?." not in said


@pytest.mark.parametrize("line", ["xyzzy", "timeline xyzzy", "bench --op xyzzy", "top --xyzzy"])
def test_a_word_that_is_like_none_gets_no_guess(line, capsys):
    try:
        status = main(line.split())
    except SystemExit as ended:
        status = ended.code
    said = capsys.readouterr().err
    assert status == 2
    assert "xyzzy" in said
    assert "did you mean" not in said


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("params:\n  cycle_tim_ms: 3\n", "params.cycle_time_ms"),
        ("autotune:\n  enabeld: true\n", "autotune.enabled"),
        ("parms:\n  cycle_time_ms: 3\n", "params"),
        ("cycle_time_ms: 3\n", "params.cycle_time_ms"),
        ("timeline:\n  cache_capacity: 3\n", "params.cache_capacity"),
        ("controler: gloo\n", "controller"),
        (
            "logging:\n  hide_timestamp: true\n",
            "logging.with_timestamp, which turns HOROVOD_LOG_HIDE_TIME off",
        ),
        (
            "stall_check:\n  disabled: true\n",
            "stall_check.enabled, which turns HOROVOD_STALL_CHECK_DISABLE off",
        ),
        ("stall_check:\n  enabeld: true\n", "stall_check.enabled"),
        ("logging:\n  with_timestmap: true\n", "logging.with_timestamp"),
        ("params:\n  xyzzy: 3\n", None),
    ],
)
def test_a_misspelt_key_of_the_configuration_gets_a_near_match(text, near, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    (notice,) = read_config_file(str(file)).notices()
    assert notice.endswith(f"is no known setting; did you mean {near}?" if near else "setting.")


@pytest.mark.parametrize(
    ("variable", "text", "near"),
    [
        ("HOROVOD_LOG_LEVEL", "inof", "INFO"),
        ("HOROVOD_AUTOTUNE", "ture", "true"),
        ("HOROVOD_CPU_OPERATIONS", "glo", "gloo"),
        ("HVDTUNE_TIMELINE_FORMAT", "hovorod", "horovod"),
    ],
)
def test_a_misspelt_value_of_a_variable_gets_a_near_match(variable, text, near):
    with pytest.raises(
        knobs.KnobError, match=rf"^{variable} is '{text}'.*; did you mean {near}\?$"
    ):
        knobs.from_environ({variable: text})
