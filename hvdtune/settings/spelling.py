"""Finds the name that a misspelt one probably means, and suggests it."""

from __future__ import annotations

from collections.abc import Iterable

LIKENESS = 0.6  # difflib's ratio from which a name counts as near
SHORTEST = 2  # letters of a name that may be the beginning of another


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is most like `word`; None if none is like it.

    Case and the dashes before a flag are ignored. If no name is similar, the only name that begins
    with `word`, or that `word` begins with, is taken.
    """
    from difflib import get_close_matches

    bare = {_bare(name): name for name in names}
    word = _bare(word)
    near = get_close_matches(word, bare, 1, LIKENESS)
    if not near:
        near = [
            name for name in bare
            if min(len(name), len(word)) >= SHORTEST
            and (name.startswith(word) or word.startswith(name))
        ]  # fmt: skip
    return bare[near[0]] if len(near) == 1 else None


def hint(word: str, names: Iterable[str]) -> str:
    """The end of a sentence about `word`: "; did you mean --np?", or "." if no name is near."""
    near = nearest(word, names)
    return f"; did you mean {near}?" if near else "."


def _bare(name: str) -> str:
    return name.lower().lstrip("-")
