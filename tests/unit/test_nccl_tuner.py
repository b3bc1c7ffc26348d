"""`hvdtune autotune export --nccl-tuner`: what NCCL's example plugin reads, of measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvdtune.autotune import nccl_tuner
from hvdtune.autotune.nccl_tuner import MOST_BYTES, Choice
from hvdtune.cli import main

KIB, MIB = 1 << 10, 1 << 20
SIZES = [4, KIB, 64 * KIB, MIB, 64 * MIB]
LL = {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL", "NCCL_MIN_CTAS": "4", "NCCL_MAX_CTAS": "4"}
SIMPLE = {"NCCL_ALGO": "NVLSTree", "NCCL_PROTO": "Simple", "NCCL_MIN_CTAS": "16",
          "NCCL_MAX_CTAS": "16"}  # fmt: skip


def measurement(folder: Path, name: str, settings: dict, times: list[float], **changes) -> str:
    """A file as `hvdtune bench --device cuda --json` writes it, as far as it is read."""
    rows = [
        {"operation": "allreduce", "size_bytes": size, "in_place":
         {"time": {"p50": time}}, "out_of_place": {"time": {"p50": 9.0}}}
        for size, time in zip(SIZES, times, strict=True)
    ]  # fmt: skip
    document = {
        "device": "cuda",
        "ranks": 8,
        "environment": {"gpus": ["H100"] * 8, "nccl_settings": settings},
        "sweep": rows,
        **changes,
    }
    path = folder / name
    path.write_text(json.dumps(document))
    return str(path)


def as_the_plugin(text: str) -> list[tuple]:
    """What plugin.c makes of a file: its names, its numbers, at most 255 characters a line."""
    algorithms = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
    rules = []
    for line in text.splitlines():
        assert len(line) < 255
        if line.startswith("#") or not line:
            continue
        fields = line.split(",")
        assert len(fields) == 10
        assert fields[0] in ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
        assert fields[3] in algorithms
        assert fields[4] in ("ll", "ll128", "simple")
        rules.append(
            (fields[0], int(fields[1]), int(fields[2]), *fields[3:5], *map(int, fields[5:]))
        )
    return rules


def test_the_fastest_is_chosen_by_size_and_all_sizes_have_a_rule(tmp_path, capsys):
    small = measurement(tmp_path, "ll.json", LL, [1, 1, 2, 20, 900])
    large = measurement(tmp_path, "simple.json", SIMPLE, [3, 3, 3, 10, 100])
    target = tmp_path / "tuner.csv"
    assert main.main(["autotune", "export", "--nccl-tuner", str(target), small, large]) == 0
    border = 256 * KIB  # the geometric mean of 64 KiB and 1 MiB
    assert as_the_plugin(target.read_text()) == [
        ("allreduce", 0, border, "tree", "ll", 4, 1, 8, -1, -1),
        ("allreduce", border + 1, MOST_BYTES, "nvls_tree", "simple", 16, 1, 8, -1, -1),
    ]
    said = capsys.readouterr().out
    assert said == (
        f"{target}: 2 rules; not measured, and slow with the plugin, which gives them one channel: "
        "allgather, reducescatter, broadcast\n"
    )
    assert "# measured by hvdtune bench on H100\n" in target.read_text()


def test_noise_does_not_make_rules():
    one, other = Choice("ring", "simple", 8), Choice("tree", "simple", 8)
    measured = {size: {one: 1.0, other: 0.98 if size == KIB else 1.1} for size in SIZES}
    (rule,) = nccl_tuner.choose(("allreduce", 2), measured)
    assert (rule.choice, rule.least, rule.most) == (one, 0, MOST_BYTES)


def test_a_choice_that_was_not_measured_at_a_size_does_not_go_on():
    one, other = Choice("ring", "ll", 8), Choice("ring", "simple", 8)
    rules = nccl_tuner.choose(("allreduce", 2), {4: {one: 1.0}, 16: {other: 5.0}, 64: {one: 1.0}})
    assert [(rule.choice.protocol, rule.least, rule.most) for rule in rules] == [
        ("ll", 0, 8), ("simple", 9, 32), ("ll", 33, MOST_BYTES),
    ]  # fmt: skip


def test_ranks_and_collectives_have_rules_of_their_own(tmp_path):
    paths = [
        measurement(tmp_path, "2.json", LL, [1] * 5, ranks=2),
        measurement(tmp_path, "8.json", LL, [1] * 5),
        measurement(tmp_path, "again.json", LL, [2] * 5),
    ]
    for name in ("allgather", "alltoall"):
        document = json.loads(Path(paths[1]).read_text())
        for row in document["sweep"]:
            row.update(operation=name, in_place=None)
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(document))
        paths.append(str(path))
    target = tmp_path / "tuner.csv"
    assert nccl_tuner.export(paths, str(target)).startswith(f"{target}: 3 rules; not measured")
    rules = as_the_plugin(target.read_text())
    assert [(rule[0], rule[7]) for rule in rules] == [
        ("allgather", 8), ("allreduce", 2), ("allreduce", 8),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "was measured without NCCL_ALGO: measure with one of tree, ring"),
        ({**LL, "NCCL_ALGO": "ring,tree"}, "was measured NCCL_ALGO=ring,tree"),
        ({**LL, "NCCL_PROTO": "^LL128"}, "measure with one of ll, ll128, simple in NCCL_PROTO"),
        (
            {**LL, "NCCL_MAX_CTAS": "8"},
            "with NCCL_MIN_CTAS=4 and NCCL_MAX_CTAS=8: measure with",
        ),
        ({"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}, "NCCL_MIN_CTAS=unset and NCCL_MAX_CTAS=unset"),
    ],
)
def test_what_a_measurement_must_say(tmp_path, capsys, settings, words):
    path = measurement(tmp_path, "m.json", settings, [1] * 5)
    target = tmp_path / "tuner.csv"
    assert main.main(["autotune", "export", "--nccl-tuner", str(target), path]) == 2
    assert words in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not a JSON file of hvdtune bench"),
        ("[]", "is not a measurement on GPUs: make one with hvdtune bench --device cuda --json"),
        ('{"device": "cpu"}', "is not a measurement on GPUs"),
        ('{"device": "cuda"}', "is not a complete file of hvdtune bench: 'environment' is missing"),
    ],
)
def test_other_files_are_refused(tmp_path, capsys, content, words):
    path = tmp_path / "m.json"
    path.write_text(content)
    assert (
        main.main(["autotune", "export", "--nccl-tuner", str(tmp_path / "t.csv"), str(path)]) == 2
    )
    assert words in capsys.readouterr().err


def test_nothing_for_the_plugin_and_two_kinds_of_gpus_are_refused(tmp_path):
    path = measurement(tmp_path, "m.json", LL, [1] * 5, sweep=[])
    with pytest.raises(ValueError, match="none of the collectives that the plugin knows"):
        nccl_tuner.export([path], str(tmp_path / "t.csv"))
    wrong = measurement(tmp_path, "w.json", LL, [1] * 5, wrong=3)
    with pytest.raises(ValueError, match="has 3 wrong results"):
        nccl_tuner.export([path, wrong], str(tmp_path / "t.csv"))
    other = {"gpus": ["A100"], "nccl_settings": LL}
    second = measurement(tmp_path, "a.json", LL, [1] * 5, environment=other)
    with pytest.raises(ValueError, match=r"m.json was measured on H100, but .* on A100"):
        nccl_tuner.export([path, second], str(tmp_path / "t.csv"))


def test_one_profile_at_a_time_without_the_flag(tmp_path, capsys):
    store = ["--autotune-store", str(tmp_path / "s.json")]
    assert main.main(["autotune", "export", "ab", "cd", *store]) == 2
    assert "give the key of one profile" in capsys.readouterr().err
