"""Write docs/knobs.md from the table of settings: `python docs/generate_knobs.py [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import generated_page

# The table of this checkout, which needs nothing compiled; hvdtune/__init__.py does.
package = ModuleType("hvdtune")
package.__path__ = [str(Path(__file__).resolve().parents[1] / "hvdtune")]
sys.modules["hvdtune"] = package

from hvdtune.settings.knobs import KNOBS, Knob, accepted, size_words  # noqa: E402

PAGE = Path(__file__).with_name("knobs.md")

INTRODUCTION = """\
# Settings

<!-- Made by docs/generate_knobs.py. Edit hvdtune/settings/knobs.py, not this page. -->

A setting can be given on the command line of `hvdtune run`, in the YAML file of
`--config-file`, or as an environment variable. The command line wins over the file, the file over
the environment. `hvdtune config` prints every setting with its value, its unit and where the value
came from.

- Sizes take a unit: `64MB`, `1GiB`, `65536`. `KB`, `MB` and `GB` are powers of 1024.
- Switches take `1` or `0`; `true`/`false`, `yes`/`no` and `on`/`off` are understood too.
- An empty variable counts as absent, except `HVDTUNE_AUTOTUNE_STORE`. A value that is not accepted
  ends the program with a sentence that names the setting, the value and what is accepted.
- The sentence about an unknown name or value suggests a near match: "did you mean
  HOROVOD_FUSION_THRESHOLD?". Once in a job, rank 0 names the variables that begin with `HOROVOD_`
  or `HVDTUNE_` and do nothing here: unknown ones, and those that only Horovod itself reads, with
  the reason. `hvdtune config` and `hvdtune doctor` also name those that say how Horovod is built.
- The autotuner ([`HOROVOD_AUTOTUNE`](#horovod_autotune)) changes **tunable** settings, except those
  that are fixed because their variable is present.
- Settings are read once, when `init` is called. Give every rank the same ones.
- Jobs on several hosts that `hvdtune run` does not start [find rank 0 by
  themselves](running/mpirun.md#how-ranks-of-several-hosts-find-each-other); `HVDTUNE_SECRET` and
  `HOROVOD_GLOO_RENDEZVOUS_ADDR` and `_PORT` are for those that cannot.
"""

SECTIONS = (
    ("The engine", ("params",)),
    ("Autotune", ("autotune",)),
    ("Timeline", ("timeline",)),
    ("Stall check", ("stall_check",)),
    ("Metrics", ("metrics",)),
    ("Logging", ("logging",)),
    ("Elastic jobs", ("elastic",)),
    ("Libraries, threads and starting", ("library_options", "")),
)
ENGINE_KEYS = ("disable_group_fusion",)
INERT_INTRODUCTION = """\
Scripts and command lines written for Horovod may contain these. hvdtune accepts and checks them,
and does nothing with them in this version.
"""


def default_words(knob: Knob) -> str:
    """The default as a user would write it."""
    if knob.default is None or knob.default == () or knob.default == "":
        return "not set"
    if knob.kind == "bool":
        return "on (`1`)" if knob.default else "off (`0`)"
    if knob.kind == "size":
        zero = "chosen by the engine (`0`)" if knob.zero_is_auto else "off (`0`)"
        return zero if knob.default == 0 else size_words(knob.default)
    number = f"{knob.default:g}" if knob.kind == "float" else str(knob.default)
    return f"`{number}`" + (f" {knob.unit}" if knob.unit else "")


def yaml_words(knob: Knob) -> str:
    """The YAML key, and how its meaning differs from the variable's."""
    notes = []
    if knob.yaml_inverted:
        notes.append("the other way round: `true` turns the variable off")
    if knob.flag_multiplier != 1:
        notes.append(f"a plain number counts {size_words(knob.flag_multiplier)}")
    return f"`{knob.yaml}`" + (f" ({'; '.join(notes)})" if notes else "")


def flag_words(knob: Knob) -> str:
    """The flags that set it, then those that turn it off."""
    words = " or ".join(f"`{flag}`" for flag in knob.flags)
    if knob.flag_multiplier != 1:
        words += f" (a plain number counts {size_words(knob.flag_multiplier)})"
    if knob.off_flags:
        words += "; to turn it off: " + " or ".join(f"`{flag}`" for flag in knob.off_flags)
    return words


def tuning_words(knob: Knob) -> str:
    """The range in which the autotuner looks."""
    if knob.kind == "bool":
        return "on and off, in jobs on several hosts with more than one rank on at least one"
    assert knob.tune_range is not None
    if knob.kind == "size":
        low, high = (size_words(int(bound)) for bound in knob.tune_range)
    else:
        low, high = (f"{bound:g} {knob.unit}".strip() for bound in knob.tune_range)
    return f"from {low} to {high}, on a {knob.scale} scale"


def entry(knob: Knob) -> str:
    """One setting: heading, meaning, and a list of facts."""
    facts = [f"Accepted values: {accepted(knob)}.", f"Default: {default_words(knob)}."]
    if knob.flags:
        facts.append(f"Flag: {flag_words(knob)}.")
    if knob.yaml:
        facts.append(f"YAML key: {yaml_words(knob)}.")
    if knob.requires:
        facts.append(f"Does nothing without [`{KNOBS[knob.requires].env}`](#{anchor(knob)}).")
    if knob.tunable:
        who = "Tunable by `hvdtune tune` only" if knob.tuned_offline else "Tunable"
        facts.append(f"{who}: {tuning_words(knob)}.")
    if knob.between_hosts:
        facts.append("Does nothing in a job on one host.")
    if knob.on_gpus:
        facts.append("Does nothing without tensors on GPUs.")
    if knob.inert:
        facts.append(f"No effect: {knob.inert}.")
    listed = "\n".join(f"- {fact}" for fact in facts)
    return f"### {knob.env}\n\n(since {knob.since})\n\n{knob.help}\n\n{listed}\n"


def anchor(knob: Knob) -> str:
    """The heading's anchor of the setting that `knob` requires."""
    assert knob.requires is not None
    return KNOBS[knob.requires].env.lower()


def section_of(knob: Knob) -> str:
    """The YAML section, or the one where a setting without a YAML key is explained."""
    return "params" if knob.key in ENGINE_KEYS else knob.section


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    shown = [knob for knob in KNOBS.values() if not knob.internal]
    for title, sections in SECTIONS:
        knobs = [k for k in shown if section_of(k) in sections and not k.inert]
        parts += [f"## {title}\n", *map(entry, knobs)]
    parts += ["## Accepted for compatibility\n", INERT_INTRODUCTION]
    parts += [entry(knob) for knob in shown if knob.inert]
    missing = [k.env for k in shown if f"### {k.env}\n" not in "\n".join(parts)]
    if missing:
        sys.exit(f"docs/generate_knobs.py: no section of the page shows {', '.join(missing)}")
    return "\n".join(parts)


def main() -> int:
    """Write the page, or with --check say whether it is up to date."""
    return generated_page.write(PAGE, page(), __file__)


if __name__ == "__main__":
    sys.exit(main())
