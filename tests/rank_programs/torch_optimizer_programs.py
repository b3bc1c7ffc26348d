"""Rank programs: the checks of DistributedOptimizer, many to a start of ranks."""

from __future__ import annotations

import os

import rank_programs.torch_misuse as misuse
import rank_programs.torch_optimizer_adasum as adasum
import rank_programs.torch_optimizer_recipes as recipes
import rank_programs.torch_optimizer_sparse as sparse
import rank_programs.torch_training as training
from rank_programs.torch_cases import run_checks

import hvdtune.torch as hvd
from hvdtune.torch.optimizer import overlap


def reduce_in_backward_pass(during: bool) -> None:
    """Whatever the machine: reduce gradients during the backward pass, or after it."""
    overlap.wanted = lambda: during


def alone() -> list[str]:
    """One process, with and without hooks."""
    hvd.init()
    names = run_checks(*training.ALONE)
    os.environ["HOROVOD_ELASTIC"] = "1"
    optimizer = training.distributed(training.new_model())
    assert optimizer._reducer.communicates
    return names + run_checks(
        *training.ALONE,
        misuse.too_many_backward_passes_alone,
        recipes.line_search,
        recipes.gradient_scalers,
    )


def two_ranks() -> list[str]:
    """Everything."""
    hvd.init(process_sets=[training.front])
    reduce_in_backward_pass(True)
    names = run_checks(
        *training.CHECKS,
        *misuse.CHECKS,
        *sparse.CHECKS,
        *adasum.CHECKS,
        *recipes.CHECKS,
    )
    reduce_in_backward_pass(False)
    again = [check for check in training.CHECKS if check is not training.process_set]
    return names + run_checks(
        *again,
        misuse.zero_grad_at_the_wrong_time,
        misuse.too_many_backward_passes,
        misuse.gradient_of_a_gradient,
        misuse.ranks_that_disagree,
        misuse.gradient_that_cannot_be_sent,
        *sparse.CHECKS,
        adasum.training,
        recipes.gradient_scalers,
        recipes.gradients_changed_too_early,
        recipes.compressors_that_send_the_tensor_itself,
        recipes.checkpointed_activations,
        recipes.optimizers_in_flight_at_once,
        recipes.load_state_dict_in_the_middle,
        recipes.load_state_dict_after_uneven_passes,
    )


def three_ranks() -> list[str]:
    """No power of two, and averages that are not exact."""
    training.front.ranks = [0, 1]
    hvd.init(process_sets=[training.front])
    reduce_in_backward_pass(False)
    return run_checks(
        training.options,
        training.several_backward_passes,
        training.parameters_that_one_rank_does_not_use,
        training.process_set,
        recipes.line_search,
        recipes.uneven_data,
        adasum.wrong_number_of_ranks,
    )


def four_ranks() -> list[str]:
    """What has a tree (Adasum) or roles that differ between ranks."""
    training.front.ranks = [0, 1, 2]
    hvd.init(process_sets=[training.front])
    reduce_in_backward_pass(True)
    return run_checks(
        training.options,
        training.process_set,
        misuse.ranks_that_disagree,
        misuse.groups_differ_between_ranks,
        recipes.optimizers_in_flight_at_once,
        recipes.gradient_scalers,
        recipes.load_state_dict_in_the_middle,
        recipes.load_state_dict_after_uneven_passes,
        recipes.ranks_with_different_parameters,
        recipes.other_reductions,
        *sparse.CHECKS,
        *adasum.CHECKS,
    )
