"""Several optimizers over one backward pass, and the attributes by which clients know one."""

from rank_programs import torch_bystanders
from support.jobs.ranks import run_ranks

HOROVODS = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
    "optimizer.synchronize(). This is prohibited as it can cause a race condition"
)
# Whose gradients are in flight, and who stepped.
BYSTANDERS = {
    "gan": ("RMSprop", "Adam"),
    "halves": ("Adam", "SGD"),
    "three": ("Adagrad", "Adam"),
    "critic_steps": ("Adam", "RMSprop"),
    "accumulation": ("Adam", "RMSprop"),
    "shared": ("SGD", "Adam"),
}
NOT_ASKED_FOR_TWICE = "critic_steps"  # its second backward pass is one too many already


def test_messages_name_the_optimizer_and_a_way_out() -> None:
    for messages in run_ranks(2, torch_bystanders.messages).values:
        for case, (waiting, stepped) in BYSTANDERS.items():
            text = messages[case]
            if case != NOT_ASKED_FOR_TWICE:
                assert text.startswith(HOROVODS), case
            assert f"In flight are the gradients of {waiting} (DistributedOptimizer" in text, case
            assert f". {stepped} (DistributedOptimizer number " in text, case
            assert "has stepped since" in text, case
            assert "requires_grad_(False)" in text, case
            assert "synchronize() on this optimizer" in text, case
        assert messages["alone"].startswith(HOROVODS)
        assert messages["alone"].endswith("Call it before backward() or after step().")
        assert "has stepped since" not in messages["plain_mistake"]
        assert "If they come from a backward pass for another" in messages["plain_mistake"]


def test_the_ways_out_work() -> None:
    assert run_ranks(2, torch_bystanders.remedies).values == (True, True)


def test_attributes_of_horovods_optimizer() -> None:
    run_ranks(2, torch_bystanders.horovods_attributes)
