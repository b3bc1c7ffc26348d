"""Which of the launcher's environment variables reach workers that do not inherit them."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Variables of the launcher's own shell or choice of devices, and a key of Spark's, as in Horovod.
_KEPT_BACK = re.compile(r"BASH_FUNC_|OLDPWD|.*CUDA_VISIBLE_DEVICES|_HOROVOD_SECRET_KEY")


def exportable(environ: Mapping[str, str]) -> list[str]:
    """The names of the variables that are passed on to other hosts, sorted."""
    return sorted(name for name in environ if not _KEPT_BACK.match(name))
