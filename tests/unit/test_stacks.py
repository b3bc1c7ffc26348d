"""What a process says about where its Python threads are."""

from __future__ import annotations

from hvdtune.core.observation import stacks


def deep(left: int) -> str:
    return stacks.format_stacks() if not left else deep(left - 1)


def test_the_innermost_frames_of_a_deep_stack_stay() -> None:
    text = deep(300)
    main = text.partition("\nthread ")[0]
    assert main.startswith("main thread (most recent call last):\n  ... ")
    assert "outer frames left out ..." in main
    assert "in format_stacks" in main.splitlines()[-2]
    assert len(main) < 4200
    assert len(text) <= 8000


def test_a_stack_that_fits_is_whole() -> None:
    lines = ["  outer\n", "  inner\n"]
    assert stacks._innermost(lines) == "  outer\n  inner\n"
    assert stacks._innermost(["x" * 3000, "y" * 3000]) == (
        "  ... 1 outer frame left out ...\n" + "y" * 3000
    )
