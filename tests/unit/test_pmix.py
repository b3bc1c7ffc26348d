"""The two ways to call libpmix, from a rank and from its child, with a library of this test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.jobs.ranks import clean_environment

LIBRARY = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char name_space[256]; uint32_t rank; } Process;
typedef struct { uint16_t kind; union { const char* text; char rest[24]; } content; } Value;

static char kept[4096];

static int code(const char* name) {
  const char* said = getenv(name);
  return said ? atoi(said) : 0;
}
int PMIx_Init(Process* own, void* info, size_t count) {
  strcpy(own->name_space, "job");
  own->rank = code("RANK");
  return code("INIT");
}
int PMIx_Put(uint8_t scope, const char* key, Value* value) {
  if (scope != 3 || value->kind != 3) return -1;
  snprintf(kept, sizeof kept, "%s=%s", key, value->content.text);
  return code("PUT");
}
int PMIx_Commit(void) { return 0; }
int PMIx_Fence(const Process* who, size_t count, const void* info, size_t infos) {
  return infos == 1 ? code("FENCE") : -1;
}
int PMIx_Get(const Process* who, const char* key, const void* info, size_t count, Value** out) {
  static Value value;
  value.kind = 3;
  value.content.text = who->rank == (uint32_t)code("RANK") ? kept : "of another";
  *out = &value;
  return code("GET");
}
int PMIx_Finalize(const void* info, size_t count) {
  fclose(fopen(getenv("SIGNED_OFF"), "w"));
  return 0;
}
"""
ASK = """
import json, os, sys
from hvdtune.core.meeting import pmix
library, *questions = sys.argv[1:]
session = pmix.{kind}
print(json.dumps([session.ask(question, 30) for question in questions]), flush=True)
session.{end}()
"""
KINDS = {"thread": "_Thread(library)", "child": "_Child(library, os.environ)"}
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source = tmp_path_factory.mktemp("pmix") / "pmix.c"
    source.write_text(LIBRARY)
    made = source.with_suffix(".so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source], check=True)
    return made


@pytest.fixture(params=KINDS)
def ask(request: pytest.FixtureRequest, library: Path, tmp_path: Path) -> Ask:
    def ask_them(*questions: str, end: str = "end", of: str = "", **environ: str) -> list[str]:
        ended = subprocess.run(
            [
                sys.executable,
                "-c",
                ASK.format(kind=KINDS[request.param], end=end),
                of or str(library),
                *questions,
            ],
            env={**clean_environment(), "SIGNED_OFF": str(tmp_path / "signed off"), **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 0, ended.stderr
        answers: list[str] = json.loads(ended.stdout)
        return answers

    return ask_them


def test_the_root_tells_and_hears_itself(ask: Ask, tmp_path: Path) -> None:
    long = "x" * 2000
    questions = ("2 hvdtune.0 a-text", f"2 hvdtune.1 {long}")
    assert ask(*questions, RANK="2") == ["told hvdtune.0=a-text", f"told hvdtune.1={long}"]
    assert os.listdir(tmp_path) == ["signed off"]


def test_the_others_have_nothing_to_tell(ask: Ask) -> None:
    assert ask("0 hvdtune.0 ", "0 hvdtune.1 ", RANK="1") == ["told of another"] * 2


@pytest.mark.parametrize("call", ["Put", "Fence", "Get"])
def test_a_call_that_fails_is_named(ask: Ask, call: str) -> None:
    assert ask("0 hvdtune.0 text", **{call.upper(): "-25"}) == [f"failed PMIx_{call} gave -25"]


def test_pmix_that_does_not_begin_is_absent(ask: Ask, library: Path) -> None:
    assert ask("0 hvdtune.0 text", INIT="-31") == ["absent PMIx_Init gave -31"]
    (said,) = ask("0 hvdtune.0 text", of=f"{library}.no")
    assert said.startswith("absent ")
    assert f"{library}.no" in said


def test_a_process_that_has_failed_does_not_sign_off(ask: Ask, tmp_path: Path) -> None:
    assert ask("0 hvdtune.0 text", end="fail") == ["told hvdtune.0=text"]
    assert os.listdir(tmp_path) == []
