"""The module that links Gloo; it is beside the engine's if hvdtune was built with Gloo."""

from __future__ import annotations

from hvdtune.core.libraries.compiled import compiled

#: How to get it; ends a sentence.
ADVICE = (
    "install Gloo (Debian: libgloo-dev) and then hvdtune from source, with pip install "
    "--no-binary hvdtune hvdtune, or pip install . in its folder"
)


def module_path() -> str:
    """The module's path; "" if hvdtune was built without Gloo."""
    return compiled("_gloo.so")


def choose() -> str:
    """The module's path. Raises ValueError if there is none."""
    path = module_path()
    if not path:
        raise ValueError(f"this hvdtune was built without Gloo. To get it: {ADVICE}")
    return path
