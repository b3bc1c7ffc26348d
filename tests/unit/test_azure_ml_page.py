"""The components in docs/running/azure-ml.md, against the fields that Azure ML publishes."""

import re
from pathlib import Path

import pytest
import yaml

PAGE = Path(__file__).resolve().parents[2] / "docs/running/azure-ml.md"

# Of its specification of components and of the command component of its command line's version 2;
# of the objects in them, the fields that a job of ranks needs. A star: the field must be there.
COMMON = {"$schema*", "name*", "version*", "type*", "display_name", "description", "tags"}
COMMON |= {"is_deterministic", "inputs", "outputs", "environment*"}
FIELDS = {
    "DistributedComponent": COMMON | {"launcher*", "successful_return_code"},
    "DistributedComponent.launcher": {"type*", "additional_arguments*"},
    "DistributedComponent.environment": {"docker", "conda", "name", "version"},
    "DistributedComponent.environment.docker": {"image"},
    "command": COMMON | {"command*", "code", "distribution", "resources"},
    "command.environment": {"image", "build", "conda_file", "description", "tags"},
    "command.distribution": {"type*", "process_count_per_instance"},
    "command.resources": {"instance_count", "shm_size", "docker_args", "locations", "properties"},
}


def components():
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return [yaml.safe_load(block) for block in blocks]


def faults(value, where):
    table = FIELDS[where]
    names = {name.rstrip("*") for name in table}
    needed = {name.rstrip("*") for name in table if name.endswith("*")}
    found = [f"{where} has no {name}" for name in sorted(needed - set(value))]
    found += [f"{where} has {name}" for name in sorted(set(value) - names)]
    for name, entry in value.items():
        if name in names and isinstance(entry, dict):
            found += faults(entry, f"{where}.{name}")
    return found


@pytest.mark.parametrize("index", [0, 1])
def test_only_fields_that_there_are(index):
    component = components()[index]
    assert faults(component, component["type"]) == []
    assert re.fullmatch(r"[a-z][a-z0-9_]*", component["name"])
    assert len(components()) == 2


def test_the_ranks_are_started_by_mpi():
    first, second = components()
    assert (first["type"], first["launcher"]["type"]) == ("DistributedComponent", "mpi")
    assert (second["type"], second["distribution"]["type"]) == ("command", "mpi")
    assert second["distribution"]["process_count_per_instance"] == 4


def test_the_check_can_fail():
    component = components()[0]
    component["launcher"]["arguments"] = component["launcher"].pop("additional_arguments")
    del component["version"]
    assert faults(component, "DistributedComponent") == [
        "DistributedComponent has no version",
        "DistributedComponent.launcher has no additional_arguments",
        "DistributedComponent.launcher has arguments",
    ]
