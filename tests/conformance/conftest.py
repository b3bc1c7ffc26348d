"""The parameters of a face's tests, and one look for what they left behind in all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest
from conformance.suite import MISTAKEN, FaceConformance, parameters, ranks_of
from support.jobs.leftovers import left_by_test, look
from support.jobs.nursery import MARK
from support.tiers import EVERY

# A job of so many ranks runs the table in the long tests, a thorough one with all forms of all but
# large tensors. Where the engine carries what a face has understood, one face tells as much as all,
# and 3 ranks as much as 8 (tests/parallel/test_hosts_grid.py has 6).
OF_NUMPY = [(3, True)]
OF_ALL = [(3, True), (2, True), (8, True), (8, False)] if EVERY else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.cls is None or not issubclass(metafunc.cls, FaceConformance):
        return
    names, face = metafunc.fixturenames, metafunc.cls.face
    tables = OF_ALL or (OF_NUMPY if face.name == "numpy" else [])
    if "np" in names:
        long = [
            pytest.param(np, thorough, marks=pytest.mark.long, id=f"np{np}{'-thorough' * thorough}")
            for np, thorough in tables
        ]
        quick = [pytest.param(np, False, id=f"np{np}") for np in ranks_of(face)]
        metafunc.parametrize("np, thorough", [*quick, *long])
    elif "thorough" in names:
        long = [pytest.param(True, marks=pytest.mark.long, id="thorough")]
        quick = [pytest.param(False, id="quick")]
        metafunc.parametrize("thorough", quick + long * ((MISTAKEN, True) in tables))
    for wanted, values in parameters(metafunc.cls.face).items():
        if set(wanted.split(", ")) <= set(names):
            metafunc.parametrize(wanted, values)


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """As everywhere, but once for a face: its tests only look at what a few jobs have found."""
    mark = secrets.token_hex(16)
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("HOROVOD_", "HVDTUNE_")) and not name.startswith("HVDTUNE_TEST_"):
                patch.delenv(name)
        patch.setenv("HVDTUNE_AUTOTUNE_STORE", "")
        patch.setenv(MARK, mark)
        patch.setenv("HVDTUNE_TEST_DIRECTORY", str(tmp_path_factory.mktemp("job")))
        before = look(mark)
        yield
        left = left_by_test(before)
    assert not left, "the tests left something behind: " + "; ".join(left)
