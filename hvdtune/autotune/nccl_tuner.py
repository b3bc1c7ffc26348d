"""Exports the fastest algorithm, protocol and channels for each size for NCCL's example tuner
plugin: `hvdtune autotune export --nccl-tuner FILE MEASUREMENT…`.

A measurement is the JSON file of one `hvdtune bench --device cuda` with NCCL_ALGO, NCCL_PROTO and
equal NCCL_MIN_CTAS and NCCL_MAX_CTAS. The plugin's file (NVIDIA/nccl, plugins/tuner/example,
README.md and plugin.c; earlier ext-tuner/example) has one rule per line; the first match counts:

    collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff

with -1 for any number and for NCCL's own choice of channels; lines that begin with # are comments.
However, NCCL's own choice does not work: plugin.c presets one channel for every call, and NCCL uses
that. So all rules here name their channels, and together they cover all sizes.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

#: The plugin's words, by ours or NCCL's in lower case.
COLLECTIVES = {name: name for name in ("allreduce", "allgather", "reducescatter", "broadcast")}
ALGORITHMS = {
    **{name: name for name in ("tree", "ring", "nvls", "pat")},
    **{"collnetdirect": "collnet_direct", "collnetchain": "collnet_chain"},
    "nvlstree": "nvls_tree",
}
PROTOCOLS = {name: name for name in ("ll", "ll128", "simple")}
_COLUMNS = ",".join(
    (
        *("collective_type", "min_bytes", "max_bytes", "algorithm", "protocol", "channels"),
        *("nNodes", "nRanks", "numPipeOps", "regBuff"),
    )
)
#: The largest size_t.
MOST_BYTES = 2**64 - 1
#: If a choice is within this share of the best, it is kept for the next size.
AS_GOOD = 0.03


class Choice(NamedTuple):
    """The settings of a measurement, in the plugin's words."""

    algorithm: str
    protocol: str
    channels: int


class Rule(NamedTuple):
    """One line of the plugin's file; `most` is inclusive."""

    collective: str
    least: int
    most: int
    choice: Choice
    ranks: int

    def line(self) -> str:
        """In the plugin's format: one node, these ranks, any pipelining and registration."""
        words = (self.collective, self.least, self.most, *self.choice, 1, self.ranks, -1, -1)
        return ",".join(map(str, words))


#: Seconds by (collective, ranks), size and choice.
Times = dict[tuple[str, int], dict[int, dict[Choice, float]]]


def export(paths: Iterable[str], target: str) -> str:
    """Write the plugin's file; returns a message for the user.

    Raises ValueError with one sentence for a file that is not such a measurement, OSError for one
    that cannot be read or written.
    """
    times: Times = defaultdict(lambda: defaultdict(dict))
    kinds: dict[str, str] = {}
    for path in paths:
        kind = _add(times, path, _read(path))
        kinds.setdefault(kind, path)
    if len(kinds) > 1:
        (one, first), (other, second) = list(kinds.items())[:2]
        raise ValueError(
            f"{first} was measured on {one}, but {second} on {other}: a file holds only one kind."
        )
    if not times:
        raise ValueError(
            "the measurements contain none of the collectives that the plugin knows: "
            f"{', '.join(COLLECTIVES)}."
        )
    rules = [rule for key in sorted(times) for rule in choose(key, times[key])]
    missing = [name for name in COLLECTIVES if name not in {rule.collective for rule in rules}]
    Path(target).write_text(_text(rules, next(iter(kinds)), missing), encoding="utf-8")
    said = f"{target}: {len(rules)} rule{'' if len(rules) == 1 else 's'}"
    if missing:
        said += (
            "; not measured, and slow with the plugin, which gives them one channel: "
            f"{', '.join(missing)}"
        )
    return said


def choose(key: tuple[str, int], measured: Mapping[int, Mapping[Choice, float]]) -> list[Rule]:
    """Rules for all sizes of one collective. Neighbours with the same choice share a rule; the
    boundary between two choices is the geometric mean of the sizes."""
    collective, ranks = key
    rules: list[Rule] = []
    before = 0
    for size, times in sorted(measured.items()):
        best = min(times, key=lambda choice: times[choice])
        kept = rules[-1].choice if rules else best
        if times.get(kept, math.inf) <= (1 + AS_GOOD) * times[best]:
            best = kept
        if rules and best == kept:
            rules[-1] = rules[-1]._replace(most=MOST_BYTES)
        else:
            least = math.isqrt(before * size) + 1 if rules else 0
            if rules:
                rules[-1] = rules[-1]._replace(most=least - 1)
            rules.append(Rule(collective, least, MOST_BYTES, best, ranks))
        before = size
    return rules


def _text(rules: list[Rule], kind: str, missing: list[str]) -> str:
    comments = [_COLUMNS, f"measured by hvdtune bench on {kind}"[:200]]
    comments += [f"not measured: {', '.join(missing)}"] * bool(missing)
    lines = [*(f"# {comment}" for comment in comments), *(rule.line() for rule in rules)]
    return "\n".join(lines) + "\n"


def _read(path: str) -> dict[str, Any]:
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # not JSON, or not text
        raise ValueError(f"{path} is not a JSON file of hvdtune bench: {error}.") from None
    if not isinstance(document, dict) or document.get("device") != "cuda":
        raise ValueError(
            f"{path} is not a measurement on GPUs: make one with "
            "hvdtune bench --device cuda --json."
        )
    if document.get("wrong"):
        raise ValueError(f"{path} has {document['wrong']} wrong results: it is not exported.")
    return document


def _add(times: Times, path: str, document: Mapping[str, Any]) -> str:
    """Add one file's times; returns the kind of its GPUs."""
    try:
        environment = document["environment"]
        choice = _choice(path, environment["nccl_settings"])
        for row in document["sweep"]:
            if row["operation"] in COLLECTIVES:
                form = row["in_place"] or row["out_of_place"]
                cell = times[row["operation"], int(document["ranks"])][int(row["size_bytes"])]
                cell[choice] = min(cell.get(choice, math.inf), float(form["time"]["p50"]))
        return ", ".join(dict.fromkeys(environment["gpus"]))
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a complete file of hvdtune bench: {error} is missing."
        ) from None


def _choice(path: str, settings: Mapping[str, str]) -> Choice:
    words = []
    for name, known in (("NCCL_ALGO", ALGORITHMS), ("NCCL_PROTO", PROTOCOLS)):
        text = settings.get(name, "")
        word = known.get(text.strip().lower())
        if word is None:
            was = f"{name}={text}" if text else f"without {name}"
            raise ValueError(
                f"{path} was measured {was}: measure with one of {', '.join(known)} in {name}."
            )
        words.append(word)
    low, high = (settings.get(f"NCCL_{end}_CTAS", "") for end in ("MIN", "MAX"))
    if low != high or not low.isdigit() or int(low) < 1:
        raise ValueError(
            f"{path} was measured with NCCL_MIN_CTAS={low or 'unset'} and NCCL_MAX_CTAS="
            f"{high or 'unset'}: measure with one number in both, so that the channels are known."
        )
    return Choice(words[0], words[1], int(low))
