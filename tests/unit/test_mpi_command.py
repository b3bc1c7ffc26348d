"""Which mpirun command is composed, for every MPI."""

import pytest

from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.external import mpi
from hvdtune.launch.external.mpi import (
    Flavour,
    MpiJob,
    compose,
    detect_flavour,
    flavour_of,
    without_effect,
)
from hvdtune.launch.local.exports import exportable

VERSIONS = {
    "mpirun (Open MPI) 5.0.11\n": Flavour.OPEN_MPI_5,
    "mpirun (Open MPI) 4.1.4\n\nReport bugs to …": Flavour.OPEN_MPI,
    "mpirun (Open MPI) 10.0.0a1": Flavour.OPEN_MPI_5,
    "OpenRTE 2.1.1": Flavour.OPEN_MPI,
    "mpirun (IBM Spectrum MPI) 10.3.1.02rtm0": Flavour.SPECTRUM,
    "HYDRA build details:\n    Version:   4.0.2\n": Flavour.MPICH,
    "mpirun (MPICH) 3.3": Flavour.MPICH,
    "Intel(R) MPI Library for Linux* OS, Version 2021.19.0 Build 1 (id: 2)": Flavour.INTEL,
    "srun 21.08": None,
    "": None,
}

TWO_HOSTS = MpiJob(
    command=["python", "train.py", "a b"],
    hosts=[Host("h1", 2), Host("h2", 2)],
    processes=4,
    environment={"PATH": "/bin", "HOROVOD_CYCLE_TIME": "5", "OLDPWD": "/", "HVDTUNE_SECRET": "x"},
)
EXPORTED = "-x HOROVOD_CYCLE_TIME -x HVDTUNE_SECRET -x PATH"
COMMAND = ["python", "train.py", "a b"]
OPEN_MPI = (
    "mpirun --allow-run-as-root --tag-output -np 4 -H h1:2,h2:2 -bind-to none -map-by slot "
    "-mca pml ob1 -mca btl ^openib"
)


def composed(flavour, **changes):
    words = compose(flavour, TWO_HOSTS._replace(**changes))
    assert words[-3:] == COMMAND
    return " ".join(words[:-3])


@pytest.mark.parametrize(("text", "flavour"), VERSIONS.items())
def test_the_version_tells_the_flavour(text, flavour):
    assert flavour_of(text) is flavour


def test_the_command_of_every_flavour():
    assert composed(Flavour.OPEN_MPI) == f"{OPEN_MPI} {EXPORTED}"
    assert composed(Flavour.OPEN_MPI_5) == (
        "mpirun --allow-run-as-root --tag-output -np 4 -H h1:2,h2:2 --bind-to none --map-by slot "
        f"--mca pml ob1 --mca btl ^openib --stdin none {EXPORTED}"
    )
    assert composed(Flavour.SPECTRUM) == (
        "mpirun --allow-run-as-root --tag-output -np 4 -H h1:2,h2:2 "
        f"-bind-to socket -map-by socket -rank-by core {EXPORTED}"
    )
    assert composed(Flavour.MPICH) == (
        "mpirun -l -np 4 -ppn 2 -hosts h1,h2 -bind-to none -map-by slot"
    )
    assert composed(Flavour.INTEL) == "mpirun -l -np 4 -ppn 2 -hosts h1,h2"


EVERYTHING = {
    "interfaces": ["eth0"],
    "interfaces_chosen": True,
    "ssh_port": 2222,
    "ssh_identity_file": "key",
    "tcp": True,
    "timestamps": True,
    "output_directory": "out",
    "mpi_args": "-x 'A=b c'",
}


def test_every_part_in_its_place():
    assert composed(Flavour.OPEN_MPI, **EVERYTHING) == (
        f"{OPEN_MPI} --timestamp-output -mca plm_rsh_args -p 2222 -i key "
        "-mca btl_tcp_if_include eth0 -x NCCL_SOCKET_IFNAME=eth0 --output-filename out "
        f"{EXPORTED} -x A=b c"
    )
    assert composed(Flavour.SPECTRUM, **EVERYTHING) == (
        "mpirun --allow-run-as-root --tag-output -np 4 -H h1:2,h2:2 "
        "-bind-to socket -map-by socket -rank-by core -tcp --timestamp-output "
        "-mca plm_rsh_args -p 2222 -i key -mca btl_tcp_if_include eth0 "
        f"-x NCCL_SOCKET_IFNAME=eth0 --output-filename out {EXPORTED} -x A=b c"
    )
    assert composed(Flavour.MPICH, **EVERYTHING) == (
        "mpirun -l -np 4 -ppn 2 -hosts h1,h2 -bind-to none -map-by slot "
        "-bootstrap=ssh -bootstrap-exec-args -p 2222 -i key -iface eth0 "
        "-genv NCCL_SOCKET_IFNAME=eth0 -outfile-pattern out -x A=b c"
    )


def test_what_is_one_word_stays_one():
    words = compose(Flavour.OPEN_MPI, TWO_HOSTS._replace(**EVERYTHING))
    assert {"-p 2222 -i key", "A=b c"} < set(words)


def test_the_users_words_for_open_mpi_4_suit_5_too():
    words = compose(
        Flavour.OPEN_MPI_5,
        TWO_HOSTS._replace(binding_args="-bind-to core", mpi_args="-mca x y", command=["-mca"]),
    )
    assert words[6:10] == ["h1:2,h2:2", "--bind-to", "core", "--mca"]
    assert words[-4:] == ["--mca", "x", "y", "-mca"]


def test_binding_args_replace_the_default_except_with_hydra():
    assert "-bind-to core -mca pml" in composed(Flavour.OPEN_MPI, binding_args="-bind-to core")
    for flavour, default in ((Flavour.MPICH, "-bind-to none -map-by slot"), (Flavour.INTEL, "")):
        job = TWO_HOSTS._replace(binding_args="-bind-to core", timestamps=True)
        line = composed(flavour, binding_args="-bind-to core")
        assert line.endswith(f"-hosts h1,h2 {default}".strip())
        assert without_effect(flavour, job) == ["--prefix-output-with-timestamp", "--binding-args"]
    assert without_effect(Flavour.OPEN_MPI, job) == []


@pytest.mark.parametrize(("count", "many"), [(63, False), (64, True)])
def test_many_hosts_are_reached_one_by_one(count, many):
    hosts = [Host(f"h{number}", 1) for number in range(count)]
    words = " ".join(compose(Flavour.OPEN_MPI, TWO_HOSTS._replace(hosts=hosts, processes=count)))
    flags = f"-mca plm_rsh_no_tree_spawn true -mca plm_rsh_num_concurrent {count}"
    assert (flags in words) == many


def test_interfaces_that_were_not_chosen_are_only_said_to_nccl_by_hydra():
    line = composed(Flavour.INTEL, interfaces=["lo"])
    assert line == "mpirun -l -np 4 -ppn 2 -hosts h1,h2 -genv NCCL_SOCKET_IFNAME=lo"


def test_nccls_interface_is_said_once():
    environment = {"NCCL_SOCKET_IFNAME": "eth7", "PATH": "/bin"}
    line = composed(Flavour.OPEN_MPI, environment=environment, interfaces=["lo"])
    assert line.count("NCCL_SOCKET_IFNAME") == 1
    line = composed(Flavour.OPEN_MPI, environment=environment)
    assert line.endswith("-x NCCL_SOCKET_IFNAME -x PATH")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hosts": [Host("a", 2), Host("b", 1)]}, "MPICH takes hosts with equally many slots"),
        ({"interfaces": ["a", "b"], "interfaces_chosen": True}, "takes one interface, not a, b"),
        ({"mpi_args": "-x 'A"}, '--mpi-args is "-x \'A", which cannot be split'),
    ],
)
def test_what_cannot_be_composed(changes, words):
    with pytest.raises(LaunchError) as error:
        compose(Flavour.MPICH, TWO_HOSTS._replace(**changes))
    assert words in str(error.value)


def test_no_secret_is_on_the_command_line():
    for flavour in Flavour:
        words = compose(flavour, TWO_HOSTS._replace(environment={"HVDTUNE_SECRET": "5ecret"}))
        assert not any("5ecret" in word for word in words)


def test_what_is_exported():
    names = ["Z", "A", "OLDPWD", "CUDA_VISIBLE_DEVICES", "MY_CUDA_VISIBLE_DEVICES"]
    names += ["BASH_FUNC_x%%", "_HOROVOD_SECRET_KEY", "HOROVOD_TIMELINE"]
    assert exportable(dict.fromkeys(names, "")) == ["A", "HOROVOD_TIMELINE", "Z"]


def fake_mpirun(folder, body):
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_mpirun_is_asked(tmp_path):
    environment = fake_mpirun(tmp_path, "echo '(Open MPI) 4.1.2' >&2")
    assert detect_flavour(environment) is Flavour.OPEN_MPI


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo ParaStation; exit 0", "is of no known MPI (ParaStation)"),
        ("echo 'no licence'; exit 3", "--version failed with exit code 3 (no licence)"),
        ("exec sleep 60", "--version did not answer within 0.2 s"),
    ],
)
def test_an_mpirun_that_is_of_no_use(tmp_path, monkeypatch, body, words):
    monkeypatch.setattr(mpi, "_VERSION_SECONDS", 0.2 if "sleep" in body else 60.0)
    with pytest.raises(LaunchError) as error:
        detect_flavour(fake_mpirun(tmp_path, body))
    assert f"{tmp_path}/mpirun" in str(error.value)
    assert words in str(error.value)
    assert "leave --mpi out" in str(error.value)


def test_no_mpirun_and_one_that_cannot_be_started(tmp_path):
    with pytest.raises(LaunchError, match="no mpirun was found on PATH"):
        detect_flavour({"PATH": str(tmp_path)})
    environment = fake_mpirun(tmp_path, "")
    (tmp_path / "mpirun").write_bytes(b"\x7fELF")
    with pytest.raises(LaunchError, match="cannot be started: Exec format error"):
        detect_flavour(environment)
