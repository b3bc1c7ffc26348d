"""What `hvdtune bench` prints and writes, from made-up measurements."""

from __future__ import annotations

import argparse
import csv
import io
import json

import pytest

from hvdtune.bench.memory import MemoryCurve, MemoryPoint
from hvdtune.bench.metrics import Summary
from hvdtune.bench.report import advice, exports, page, results, table
from hvdtune.bench.report.progress import Display
from hvdtune.bench.report.results import Report, SweepRow, WorkloadRow
from hvdtune.cli import bench as cli
from hvdtune.launch.allocation import capacity

MIB = 1 << 20
CURVE = MemoryCurve(2, (MemoryPoint(MIB, 40e9, 120e9), MemoryPoint(64 * MIB, 15e9, 50e9)))


def summary(seconds: float, p99: float | None = None) -> Summary:
    return Summary(20, seconds, 0.9 * seconds, seconds, 1.5 * seconds if p99 is None else p99)


def sweep_row(size, seconds, ranks=8, wrong=0, p99=None, in_place=True, operation="allreduce"):
    case = results.measurement(operation, size, ranks, summary(seconds, p99), wrong, CURVE)
    return SweepRow(
        operation, size, size // 4, "float32", "sum", -1, case, case if in_place else None
    )


def workload_row(size, seconds, ranks=8, wrong=0, title="ResNet-50"):
    step = results.measurement("allreduce", size, ranks, summary(seconds), wrong, CURVE)
    return WorkloadRow("resnet50", title, 161, size // 4, size, "float32", step)


def make_report(rows=(), works=(), ranks=8, cpus=8) -> Report:
    return Report(ranks, cpus, memory=CURVE, sweep=list(rows), workloads=list(works))


def test_the_first_thirteen_columns_are_nccl_tests():
    titles = table.sweep_header(True)[1].lstrip("#").split()
    half = ["time", "algbw", "busbw", "#wrong"]
    assert titles[:13] == ["size", "count", "type", "redop", "root", *half, *half]
    assert titles[13:] == ["p50", "p99", "share", "iters"]


def test_a_row_holds_what_was_measured():
    cells = table.sweep_row(sweep_row(64 * MIB, 0.08)).split()
    algbw = 64 * MIB / 0.08 / 1e9
    half = ["80000.00", f"{algbw:.2f}", f"{algbw * 1.75:.2f}", "0"]
    assert cells[:13] == [str(64 * MIB), str(16 * MIB), "float32", "sum", "-1", *half, *half]
    bound = 64 * MIB * (14 / 15e9 + 9 / 50e9)
    assert cells[13:] == ["80000.00", "120000.0", f"{100 * bound / 0.08:.0f}%", "20"]


def test_columns_stand_under_their_titles():
    header = table.sweep_header(True)[1]
    rows = [table.sweep_row(sweep_row(size, 1e-4)) for size in (4, 64 * MIB)]
    rows.append(table.sweep_row(sweep_row(4, 123.456)))
    assert {len(line) for line in [header, *rows]} == {len(header)}
    works = [table.workload_row(workload_row(8 * MIB, seconds)) for seconds in (1e-4, 12.5)]
    assert {len(line) for line in works} == {len(table.workload_header()[1])}


def test_what_does_not_apply_says_so():
    row = sweep_row(MIB, 1e-3, ranks=1, wrong=None, in_place=False)
    cells = table.sweep_row(row).split()
    assert cells[7:13] == ["N/A"] * 6
    assert cells[15] == "N/A"
    assert "out-of-place" in table.sweep_header(False)[0].split()[-1]


def test_small_sizes_have_no_share():
    assert results.measurement("allreduce", 4, 8, summary(1e-4), 0, CURVE).share is None
    assert results.measurement("allreduce", 65536, 8, summary(1e-4), 0, CURVE).share is not None


def test_share_is_the_busbw_over_that_of_the_bound():
    case = results.measurement("allreduce", MIB, 4, summary(2e-3), 0, CURVE)
    at_bound = results.measurement("allreduce", MIB, 4, summary(case.bound), 0, CURVE)
    assert case.share == pytest.approx(case.busbw / at_bound.busbw)
    assert at_bound.share == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123, "0.12"), (12345.678, "12345.7"), (123456.78, "123457"), (None, "N/A")],
)
def test_decimals_give_way_to_digits(value, text):
    assert table.number(value, 7) == text


def test_the_footer_counts_wrong_elements_and_averages_busbw():
    good = make_report([sweep_row(MIB, 1e-3), sweep_row(4 * MIB, 2e-3)])
    average = (MIB / 1e-3 + 4 * MIB / 2e-3) / 2 * 1.75 / 1e9
    assert "# Out of bounds values : 0 OK" in table.footer(good)
    assert f"# Avg bus bandwidth    : {average:.3f} GB/s" in table.footer(good)
    bad = make_report([sweep_row(MIB, 1e-3, wrong=3)], [workload_row(MIB, 1e-2, wrong=2)])
    assert "# Out of bounds values : 8 FAILED" in table.footer(bad)
    unchecked = make_report([sweep_row(MIB, 1e-3, wrong=None)])
    assert "# Out of bounds values : not checked" in table.footer(unchecked)


FAST, SLOW = 64 * MIB * (14 / 15e9 + 9 / 50e9) / 0.8, 64 * MIB * (14 / 15e9 + 9 / 50e9) / 0.2


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (make_report([sweep_row(MIB, 1e-3, wrong=1)]), "2 elements came out wrong"),
        (make_report([sweep_row(MIB, 1e-3, ranks=1)], ranks=1), "start at least two"),
        (
            make_report([sweep_row(64 * MIB, FAST)], [workload_row(64 * MIB, 3 * FAST)], cpus=2),
            "3.0 times as long as the same bytes in allreduces of 64 MiB",
        ),
        (
            make_report([sweep_row(64 * MIB, FAST)], cpus=2),
            "8 ranks share 2 CPUs: copying 64 MiB through memory takes",
        ),
        (make_report([sweep_row(64, 1e-3)], cpus=1), "8 ranks share 1 CPU: for speed, start 2"),
        (make_report([sweep_row(64 * MIB, FAST)]), "runs at 80 % of what this machine's memory"),
        (
            make_report([sweep_row(4, 1e-4, p99=1e-2), sweep_row(64 * MIB, SLOW)]),
            "4 B takes 100 us at the median but 10000 us at p99",
        ),
        (make_report([sweep_row(64 * MIB, SLOW)]), "nothing stands out: 64 MiB runs at 20 %"),
        (make_report([sweep_row(64, 1e-4)]), "nothing stands out in what was measured"),
    ],
)
def test_advice_follows_from_the_measurements(report, words):
    assert words in advice.advise(report)
    assert "\n" not in advice.advise(report)


def test_json_and_csv_hold_the_numbers_unrounded(tmp_path):
    report = make_report([sweep_row(MIB, 1e-3)], [workload_row(8 * MIB, 0.0123)])
    exports.write_json(report, tmp_path / "a.json")
    exports.write_csv(report, tmp_path / "a.csv")
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["sweep"][0]["in_place"]["time"]["mean"] == 1e-3
    assert data["workloads"][0]["steps_per_second"] == 1 / 0.0123
    assert data["memory"]["points"][1]["copy_rate"] == 15e9
    lines = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())))
    assert [(line["kind"], line["in_place"]) for line in lines] == [
        *(("sweep", "0"), ("sweep", "1"), ("workload", "1"))
    ]
    assert float(lines[2]["time_us"]) == 12300.0
    assert float(lines[0]["share"]) == report.sweep[0].out_of_place.share


def test_the_page_is_self_contained_and_escaped(tmp_path):
    report = make_report([sweep_row(MIB, 1e-3), sweep_row(4 * MIB, 2e-3)], [workload_row(MIB, 1)])
    report.notes.append("8 ranks < 9 & more")
    report.advice = "do <this>"
    page.write_html(report, ["on host <h>"], tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    assert "do &lt;this&gt;" in text
    assert "8 ranks &lt; 9 &amp; more" in text
    assert "on host &lt;h&gt;" in text
    assert text.count('class="plot"') == 3
    assert "<script src=" not in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_that_leaves_no_trace_in_the_lines():
    out, bar = io.StringIO(), Terminal()
    display = Display(out, bar)
    display.total = 4
    display.phase("memory")
    display.phase("allreduce")
    display.lines(["row"])
    assert out.getvalue() == "row\n"
    assert "[######..................] 1/4" in bar.getvalue()
    assert bar.getvalue().endswith("\r\x1b[K")


def test_a_pipe_gets_plain_lines_only():
    out, bar = io.StringIO(), io.StringIO()
    display = Display(out, bar)
    display.phase("memory")
    display.lines(["row"])
    assert (out.getvalue(), bar.getvalue()) == ("row\n", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-b", "x"], "'x' is not a size; accepted: bytes such as 8, 4K, 128M or 1G"),
        (["--np", "0"], "'0' is not accepted: give a whole number, 1 or more"),
        (["-f", "1"], "'1' is not accepted: give a number above 1"),
        (["--workload", "alexnet"], "unknown workload 'alexnet'; accepted: all, none, or"),
        (["--json", "/nowhere/at/all"], "'/nowhere/at/all' cannot be written"),
        (["--op", "reduce"], "invalid choice: 'reduce'"),
    ],
)
def test_bad_arguments_end_with_one_sentence(arguments, words, capsys):
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    with pytest.raises(SystemExit) as ending:
        parser.parse_args(arguments)
    assert ending.value.code == 2
    assert words in capsys.readouterr().err


def test_an_empty_range_of_sizes_ends_with_one_sentence(capsys):
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    assert cli.run(parser.parse_args(["-b", "8", "-e", "4"])) == 2
    assert "-e 4 is below -b 8" in capsys.readouterr().err


def test_models_that_the_control_group_has_no_memory_for_are_left_out(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("1000000000\n")
    (tmp_path / "memory.current").write_text("0\n")
    monkeypatch.setattr(capacity, "_groups", lambda *_: [tmp_path])
    report = make_report(ranks=4)
    assert cli._fitting(("vgg16", "tiny"), report) == ("tiny",)
    (note,) = report.notes
    assert note.startswith("VGG-16 is left out: 4 ranks need about 2.8 GB of memory, ")


def test_help_names_every_flag_of_the_contract(capsys):
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    text = capsys.readouterr().out
    flags = "--np --op --dtype -b -e -f --iters --warmup --check --workload --json --csv --html"
    for flag in [*flags.split(), "--timeline"]:
        assert flag in text
