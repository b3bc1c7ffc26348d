"""The parameters whose gradients a reducer reduces, and what all ranks know of them.

The unit is a group of parameters reduced together; a parameter without a group is a unit of its
own.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from hvdtune.core.hooks import StepState
from hvdtune.core.operations import AllreducePlan
from hvdtune.faces.agreement import agree
from hvdtune.faces.buckets import Groups, form_groups
from hvdtune.faces.gradients import DENSE, UNKNOWN, Layout
from hvdtune.torch.optimizer.parameter_names import Names, default_name, wire_names
from hvdtune.torch.optimizer.sending import Sender
from hvdtune.torch.optimizer.submission import Member, Unit

ParamGroups = Sequence[dict[str, Any]]  # as torch.optim.Optimizer has them


class WatchedParameters:
    """Parameters in units, each with a hook that lasts as long as this object.

    ``names`` are the parameters' own; ``step`` is the hooks' state.
    """

    def __init__(self, names: Names, sender: Sender, step: StepState) -> None:
        self.names = names
        self.members: dict[torch.Tensor, Member] = {}
        self.in_order: list[Member] = []  # the members, in order
        self.units: dict[Unit, None] = {}  # in the order of creation
        # Members of whose gradients the ranks know nothing: no rank has had one yet.
        self.undecided: dict[Member, None] = {}
        self.label = ""  # prefix for names of things other than gradients
        self.plan: AllreducePlan | None = None  # for all units, if all are plain
        self._sender = sender
        self._step = step
        self._given: list[list[torch.Tensor]] = []  # parameters by group, if all are members
        self._hooks: list[RemovableHandle] = []
        # The parameters hold the hooks, which must not outlive this object. Without the references
        # between members and units, the parameters need not wait for the garbage collector.
        weakref.finalize(self, _take_apart, self._hooks, self.units)

    def watch(self, param_groups: ParamGroups, groups: Groups | None, passes: int) -> None:
        """Watch the parameters that require gradients and are new.

        After the first call these are parameters that were unfrozen or added to the optimizer.
        ``groups``: those of DistributedOptimizer; with them, this is collective over the process
        set. ``passes``: backward passes of a step.
        """
        watched = self._given
        if len(watched) == len(param_groups) and all(
            len(parameters) == len(param_group["params"])
            and all(map(operator.is_, parameters, param_group["params"]))
            for parameters, param_group in zip(watched, param_groups, strict=True)
        ):
            return
        members, names = self.members, self.names
        new: Names = {}
        for i, param_group in enumerate(param_groups):
            for j, parameter in enumerate(param_group["params"]):
                if parameter not in members and parameter.requires_grad:
                    new[parameter] = names.setdefault(parameter, default_name(i, j))
        if groups is None:
            for parameter in new:
                self.add_unit([parameter], grouped=False, passes=passes)
        elif new:
            for group in form_groups(groups, new, self._sender.settings.process_set):
                self.add_unit(group, grouped=True, passes=passes)
        if not self.label and members:
            self.label = min(member.name for member in self.in_order)
        given = [list(param_group["params"]) for param_group in param_groups]
        self._given = given if all(p in members for group in given for p in group) else []

    def add_unit(self, parameters: Sequence[torch.Tensor], *, grouped: bool, passes: int) -> None:
        """Watch the parameters, which are reduced together."""
        unit = Unit(grouped)
        for parameter in parameters:
            member = Member(parameter, self._step, passes, self.names[parameter], unit)
            unit.members.append(member)
            self.members[parameter] = member
            self.in_order.append(member)
            self._hooks.append(parameter.register_post_accumulate_grad_hook(member))
            self.undecided[member] = None
        self.units[unit] = None
        self.plan = None

    def forget(self) -> None:
        """Forget what the ranks knew: some may know less from now on."""
        self.plan = None
        for member in self.in_order:
            member.layout = UNKNOWN
            member.settled = member.unit.plain = False
            self.undecided[member] = None

    def to_agree_on(self) -> list[Member]:
        """The members that the ranks must agree on before they are reduced, the same on all ranks.

        In all steps before, they required no gradient or no rank had one.
        """
        undecided = [member for member in self.undecided if member.parameter.requires_grad]
        undecided.sort(key=lambda member: member.name)
        return undecided

    def agree(
        self, members: Sequence[Member], seen: Sequence[Layout], *, overlaps: bool, tries: bool
    ) -> tuple[bool, bool]:
        """Agree with the other ranks on these members; see ``faces.agreement.agree``."""
        settings = self._sender.settings
        agreed = agree(
            members,
            seen,
            wire_names,
            self.label,
            settings.process_set,
            overlaps=overlaps,
            tries=tries,
        )
        for member in members:
            if settings.sparse_as_dense:
                member.layout = DENSE
            unit = member.unit
            if member.layout.known or unit.grouped:
                del self.undecided[member]
                unit.settle(all(m not in self.undecided for m in unit.members))
                unit.plain = self._sender.sends_as_is and not unit.grouped and member.layout.dense
        if not settings.views and all(unit.plain for unit in self.units):
            self.plan = self._sender.plan(tuple([member.wire_name for member in self.in_order]))
        return agreed


def layout_of(gradient: torch.Tensor | None) -> Layout:
    """The layout of one gradient."""
    if gradient is None:
        return UNKNOWN
    return Layout(False, gradient.sparse_dim()) if gradient.is_sparse else DENSE


def _take_apart(hooks: list[RemovableHandle], units: dict[Unit, None]) -> None:
    """Remove the hooks, and the references between units and their members."""
    for hook in hooks:
        hook.remove()
    hooks.clear()
    for unit in units:
        unit.members.clear()
