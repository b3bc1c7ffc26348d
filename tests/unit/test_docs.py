"""What the documents say about commands, flags, settings and files is true."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from support.jobs.ranks import hvdtune_command

from hvdtune.settings.knobs import KNOBS

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

# Variables that are no settings: the launcher's answers to "who am I" and "where is rank 0", and
# how `horovod` is found.
OTHER_VARIABLES = {
    *("HOROVOD_SPARK_PYTHONPATH", "HOROVOD_SPARK_START_TIMEOUT", "HOROVOD_SPARK_WORK_DIR"),
    "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX",
    *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    *("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME", "HVDTUNE_PREFER_HOROVOD"),
    "HOROVOD_ELASTIC",
    *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    *("HVDTUNE_TEST_SEED", "HVDTUNE_TEST_PROGRAMS", "HVDTUNE_TEST_HOSTS"),
    *("HVDTUNE_TEST_VIEWERS", "HVDTUNE_TEST_ARTEFACTS", "HVDTUNE_TEST_LONG"),
    "HVDTUNE_TEST_NURSERY",
}
BUILD_OPTIONS = re.compile(r"-D(HVDTUNE_\w+)")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def code_block_after(marker: str) -> str:
    """The code block of README that follows `<!-- marker -->`."""
    match = re.search(rf"^<!-- {marker} -->\n```sh\n(.*?)^```$", text_of(README), re.M | re.S)
    assert match, f"README.md has no code block after <!-- {marker} -->"
    return match[1]


def anchors(page: Path) -> set[str]:
    """GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.M)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in kept}


def commands(page: Path) -> list[str]:
    """Every `hvdtune …` command line in a page's code."""
    text = text_of(page)
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    joined = "\n".join([*blocks, *spans]).replace("\\\n", " ")
    found = re.findall(r"(?:^|&& |=\S+ )(hvdtune .*)$", joined, re.M)
    return [command for command in found if re.match(r"hvdtune [a-z]", command)]


@cache
def help_of(*verb: str) -> str:
    shown = subprocess.run(
        hvdtune_command(*verb, "--help"), capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, f"hvdtune {verb} --help: {shown.stderr}"
    return shown.stdout


def test_readme_has_its_two_commands_and_ci_runs_the_second():
    assert code_block_after("first command") == "pip install . && hvdtune bench --np 8\n"
    second = code_block_after("second command")
    assert second == "pip install '.[test]' && python -m pytest -n 2\n"
    printed = subprocess.run(
        [ROOT / ".ci" / "run", "--print"], capture_output=True, text=True, check=True
    )
    assert printed.stdout == second
    assert "\n  python -m pytest -m long -n 2 --durations" in text_of(ROOT / ".ci" / "run")


def test_the_page_of_settings_is_the_one_made_from_the_table():
    made = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate_knobs.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert not broken, f"{page.name}: {broken}"


def test_commands_in_the_documents_exist():
    found = [(page.name, command) for page in PAGES for command in commands(page)]
    assert {"run", "bench", "config"} <= {command.split()[1] for _, command in found}
    for page, command in found:
        verb, *arguments = command.split()[1:]
        known = help_of(verb)
        if verb in ("k8s", "timeline") and arguments and arguments[0].isalpha():
            known = help_of(verb, arguments[0])
        for argument in arguments:
            if argument in {"python", "…"}:
                break  # the rest belongs to the user's program
            flag = argument.split("=")[0]
            if flag.startswith("-"):
                assert re.search(rf"(?<![\w-]){flag}(?![\w-])", known), (
                    f"{page}: hvdtune {verb} has no flag {flag}"
                )
        assert known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_variables_in_the_documents_exist(page):
    known = {knob.env for knob in KNOBS.values()} | OTHER_VARIABLES
    text = text_of(page)
    known |= set(BUILD_OPTIONS.findall(text))
    mentioned = set(re.findall(r"\b(?:HOROVOD|HVDTUNE)_[A-Z_]*[A-Z]\b", text))
    assert mentioned <= known, f"{page.name}: {sorted(mentioned - known)}"
