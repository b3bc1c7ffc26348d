"""The manifests and the Helm chart in deploy/: the core objects against Kubernetes' own schemas.

There is no Helm here. Its templates are Go's, and the chart uses none of Helm's own functions, so
that another program which carries Go's text/template renders it as Helm does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CHART = DEPLOY / "helm"
PLAIN = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
# A process of its own: what renders is a shared library of a Go program.
RENDER = "import sys, go_template; go_template.render_template(*sys.argv[1:])"


def rendered(folder: Path, values: Mapping[str, Any], name: str = "digits") -> str:
    """The chart's objects, as `helm template NAME` prints them."""
    pytest.importorskip("go_template", reason="no go-template: pip install go-template")
    unknown = values.keys() - VALUES.keys()
    assert not unknown, f"values.yaml has no {unknown}"
    given = {"Values": {**VALUES, **values}, "Release": {"Name": name}}
    (folder / "values.json").write_text(json.dumps(given))
    words = [
        str(CHART / "templates" / "job.yaml"),
        str(folder / "values.json"),
        str(folder / "out"),
    ]
    subprocess.run([sys.executable, "-c", RENDER, *words], check=True)
    return (folder / "out").read_text()


def faults(text: str) -> list[str]:
    """What Kubernetes would not take, one text an object."""
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    found = []
    for document in yaml.safe_load_all(text):
        try:
            validator.validate(document, validator.latest_version(), strict=True)
        except validator.ValidationError as error:
            found.append(f"{document['kind']}: {error.message}")
    return found


@pytest.mark.parametrize("file", PLAIN, ids=lambda file: file.name)
def test_plain_manifests(file):
    assert faults(file.read_text()) == []


def test_the_check_can_fail():
    text = PLAIN[0].read_text().replace("restartPolicy", "restartsPolicy")
    assert faults(text) != []


def test_the_chart_with_its_own_values_is_the_plain_manifest(tmp_path):
    text = rendered(tmp_path, {})
    assert faults(text) == []
    plain = (DEPLOY / "kubernetes" / "pods.yaml").read_text()
    assert [*yaml.safe_load_all(text)] == [*yaml.safe_load_all(plain)]


def test_the_chart_with_values_of_all_kinds(tmp_path):
    values = {
        "image": "here/x@sha256:0",
        "command": ["python", "-c", "print(\"a: {b}\", '#', $HOME)\n", "é", 3],
        "workers": 7,
        "slots": 1,
        "environment": {"HOROVOD_CYCLE_TIME": 0.5, "EMPTY": "", "TEXT": "yes: no\t#"},
        "limits": {"cpu": 4, "memory": "16Gi", "nvidia.com/gpu": 1},
        "sshSecret": "keys",
    }
    text = rendered(tmp_path, values, "a-1")
    assert faults(text) == []
    service, workers, launcher = yaml.safe_load_all(text)
    assert service["metadata"]["name"] == workers["spec"]["serviceName"] == "a-1"
    assert workers["spec"]["replicas"] == 7
    [pod] = workers["spec"]["template"]["spec"]["containers"]
    assert pod["resources"]["limits"] == {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
    [starter] = launcher["spec"]["template"]["spec"]["containers"]
    assert starter["image"] == pod["image"] == "here/x@sha256:0"
    assert starter["args"] == [str(word) for word in values["command"]]
    variables = {entry["name"]: entry["value"] for entry in starter["env"]}
    assert variables == {
        **{"NAME": "a-1", "WORKERS": "7", "SLOTS": "1"},
        **{"HOROVOD_CYCLE_TIME": "0.5", "EMPTY": "", "TEXT": "yes: no\t#"},
    }
    assert '"keys"' in text or "secretName: keys" in text
