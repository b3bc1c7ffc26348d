"""Reduces the gradients of an optimizer's parameters over the ranks.

A hook on every parameter notices that its gradient is final. If the host has CPUs left, it submits
the gradient at once, so that the engine reduces while the backward pass goes on. ``synchronize``
submits the gradients that are missing, waits, and leaves the results in the gradients.
"""

from __future__ import annotations

import operator
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import torch

from hvdtune.core import job, operations
from hvdtune.core.hooks import StepState, begin_step, gather_gradients, is_changed
from hvdtune.core.reduce_ops import Adasum
from hvdtune.faces.buckets import Groups
from hvdtune.torch import async_ops
from hvdtune.torch.optimizer import overlap
from hvdtune.torch.optimizer.bystanders import Bystander
from hvdtune.torch.optimizer.gradient_views import GradientViews
from hvdtune.torch.optimizer.hooked import HookedReducer, is_view
from hvdtune.torch.optimizer.overlap_trial import OverlapTrial
from hvdtune.torch.optimizer.parameter_names import Names
from hvdtune.torch.optimizer.sending import Settings
from hvdtune.torch.optimizer.submission import NAMED_ERRORS, Member, Submission, Unit, named
from hvdtune.torch.optimizer.watched import ParamGroups, layout_of

Copied = Callable[[torch.Tensor], torch.Tensor]

_jobs = 0  # how often this process has become part of a job
_events = 0  # the same, plus how often all ranks of a job have joined
_steps: weakref.WeakSet[StepState] = weakref.WeakSet()  # of all reducers


def _count_job() -> None:
    global _jobs
    _jobs += 1
    _count_join()


def _count_join() -> None:
    global _events
    _events += 1
    for step in list(_steps):
        step.only_notes = False


job.add_lifecycle_hook(_count_job, lambda: None)
operations.add_join_hook(_count_join)


class GradientReducer(HookedReducer):
    """Submits gradients during the backward pass and writes the results back.

    ``names`` are the parameters' own; the ``groups`` are those of DistributedOptimizer. With
    groups, construction is collective over the process set.
    """

    _way_to_change = (
        "Between backward() and step(), call optimizer.synchronize() first, then clip or unscale, "
        "then step() inside optimizer.skip_synchronize()."
    )

    def __init__(
        self,
        param_groups: ParamGroups,
        names: Names,
        settings: Settings,
        *,
        backward_passes_per_step: int,
        groups: Groups | None = None,
        kind: str = "",
    ) -> None:
        super().__init__(names, settings)
        self._overlaps = False  # the ranks have agreed to reduce during the backward pass
        self._trial: OverlapTrial | None = None  # … or on a trial that finds out whether to
        self._views = GradientViews() if settings.views else None
        self._given_up: dict[Unit, Submission] = {}  # by give_up(); the engine may still run them
        # The plan for the plain units of the last step that also had others, and their names.
        self._last_plan: tuple[tuple[str, ...], operations.AllreducePlan] | None = None
        _steps.add(self._step)
        self.bystander = Bystander(kind, list(names.values()), self._step)
        self._job, self._event = _jobs, _events
        self._alone = settings.process_set.size() == 1  # then the gradients are the results
        self._warned = False  # about reductions that were given up
        self._counts_units = False  # some unit's `ready` is not 0
        self.set_backward_passes_per_step(backward_passes_per_step)
        self._begin_step()
        if settings.communicates:
            self._watched.watch(param_groups, groups, self.passes)

    @property
    def communicates(self) -> bool:
        """Whether gradients are reduced at all."""
        return self.settings.communicates

    @property
    def is_pending(self) -> bool:
        """Whether a backward pass ran after the last ``synchronize``."""
        return self._step.pending

    @property
    def is_reducing(self) -> bool:
        """Whether a gradient has had its last backward pass of the step and awaits synchronize."""
        return self.is_pending and any(not member.passes_left for member in self._watched.in_order)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Submit gradients at every ``passes``-th backward pass. Raises ValueError unless > 0."""
        if not isinstance(passes, SupportsIndex) or operator.index(passes) <= 0:
            raise ValueError(f"backward_passes_per_step must be > 0, not {passes!r}.")
        self.passes = passes
        self._count_anew()

    def synchronize(self, param_groups: ParamGroups) -> None:
        """Submit what is missing, wait for everything, and put the results into the gradients.

        ``param_groups`` are the optimizer's, which may have gained parameters. If a reduction
        fails, it still waits for all of them and raises the first error.
        """
        if not self.communicates:
            return
        self.notice_events()
        self._watched.watch(param_groups, None, self.passes)
        trial = self._trial
        try:
            if trial is not None:
                self._overlaps = trial.begin(self, self._spoils_overlap)
            if not self._alone:
                self._submit_missing()
                self._collect()
            if trial is not None:
                trial.end(self)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Begin a new step, even if reductions are under way, without waiting for the other ranks.

        If ``synchronize`` follows without a backward pass, it takes the reductions that were under
        way; ``drop_given_up`` or a new backward pass drops them.
        """
        for unit, submission in self._submissions.items():
            for member, payload in zip(submission.members, submission.payloads, strict=True):
                if payload is member.parameter.grad and not submission.is_done():
                    # The engine may still write into this gradient.
                    member.parameter.grad = payload.clone()
            self._given_up[unit] = submission
        if self._submissions:
            self._warned = False
            self._submissions.clear()
        self._begin_step()

    def drop_given_up(self) -> None:
        """Drop what ``give_up`` left, because the gradients are being cleared."""
        for submission in self._given_up.values():
            submission.dropped = True

    def submit_alone(self, parameter: torch.Tensor) -> tuple[Any, Any]:
        """See ``_allreduce_grad_async``. Raises ValueError for a parameter that is not watched."""
        if not self.communicates or self._alone:
            return None, None
        self.notice_events()
        member = self.members.get(parameter)
        if member is None:
            raise ValueError(
                f"a tensor of shape {tuple(parameter.shape)} is not a parameter of this optimizer "
                "that requires a gradient"
            )
        self._settle()
        submission = self._sender.single(member, self._payload(member))
        handle = submission.wait if submission.handle is None else submission.handle
        return handle, submission.contexts[0]

    def reduce_loss(self, loss: Any) -> Any:
        """A scalar, reduced as the gradients are, so that its gradient is the reduced one."""
        value = torch.as_tensor(loss).detach().to(torch.float64).reshape(1).clone()
        settings = self.settings
        handle = async_ops.allreduce_async_(
            value,
            name=f"{self._watched.label}.loss",
            op=settings.op,
            process_set=settings.process_set,
        )
        async_ops.synchronize(handle)
        if isinstance(loss, torch.Tensor):
            return value.reshape(loss.shape).to(loss.dtype)
        return value.item()

    def copy_with(self, copied: Copied, owner: Any) -> GradientReducer:
        """A reducer for the copied parameters of ``owner``, at the beginning of a step."""
        twin = type(self).__new__(type(self))
        GradientReducer.__init__(
            twin,
            (),
            {copied(parameter): name for parameter, name in self.names.items()},
            self.settings,
            backward_passes_per_step=self.passes,
            kind=self.bystander.kind,
        )
        for unit in self._watched.units:
            parameters = [copied(member.parameter) for member in unit.members]
            twin._watched.add_unit(parameters, grouped=unit.grouped, passes=self.passes)
        twin._watched.label = self._watched.label
        return twin

    # ---- the backward pass ----

    def _on_gradient(self, member: Member) -> None:
        if self._event != _events:
            self.notice_events()
        left = member.passes_left
        if left == 0:
            raise AssertionError(
                f"The gradient of parameter {member.name!r} was computed more than "
                f"{self.passes} time(s) before step() or synchronize(). Increase "
                "backward_passes_per_step to accumulate gradients over several backward passes. "
                f"{self.bystander.advice()}".rstrip()
            )
        if torch.is_grad_enabled():  # the pass makes a graph; looking at grad costs more
            self._refuse_graph(member)
        if self._given_up and member.unit in self._given_up:
            self._given_up[member.unit].dropped = True
        self._step.pending = True
        member.passes_left = left - 1
        if left == 1:
            unit = member.unit
            unit.ready += 1
            self._counts_units = True
            if not member.settled:
                return
            if not self._overlaps:
                if self._views is not None and not self._given_up:
                    # Copy it while it is in the cache.
                    self._views.move_in(member.parameter)
                member.note_gradient()
            elif unit.ready == len(unit.members):
                self._submit(unit, patient=False)

    def _refuse_graph(self, member: Member) -> None:
        gradient = member.parameter.grad
        if gradient is not None and gradient.requires_grad:
            raise AssertionError(
                f"The gradient of parameter {member.name!r} is part of a graph "
                "(backward with create_graph=True); it cannot be reduced in place."
            )

    def notice_events(self) -> None:
        """After a join or another init, make the ranks agree anew: some may know less.

        Ranks that had joined or are new have missed what was agreed on before. After another
        init, no reduction is under way any more.
        """
        if self._event == _events:
            return
        self._event = _events
        self._trial = None
        self._watched.forget()
        if self._job != _jobs:
            self._job = _jobs
            self._alone = self.settings.process_set.size() == 1
            self._submissions.clear()
            self._given_up.clear()
            if self._views is not None:
                self._views.clear()
            self._begin_step()

    def _begin_step(self) -> None:
        self._count_anew()
        step = self._step
        step.pending = False
        self.bystander.passed_by = ""
        step.only_notes = (
            not self._overlaps
            and self._views is None
            and not self._given_up
            and self._event == _events
        )

    def _count_anew(self) -> None:
        begin_step(self._watched.in_order, self.passes)
        if self._counts_units:
            self._counts_units = False
            for unit in self._watched.units:
                unit.ready = 0

    # ---- submitting ----

    def _submit_missing(self) -> None:
        """Submit what the backward pass did not: the ranks' graphs may differ."""
        for unit, submission in list(self._given_up.items()):
            if not submission.dropped:
                self._submissions[unit] = self._given_up.pop(unit)
        if self._watched.undecided:
            self._settle()
        if self._watched.plan is not None and not self._given_up and not self._submissions:
            gathered = gather_gradients(self._watched.in_order)
            if gathered is not None:
                payloads, changed = gathered
                if changed is not None:
                    self._warn_changed(changed)
                self._reduce_now(self._watched.in_order, self._watched.plan, payloads)
                return
        missing = [unit for unit in self._watched.units if unit not in self._submissions]
        plain = []
        for unit in missing:
            for member in unit.members:
                if is_changed(member):
                    self._warn_changed(member)
            if unit.plain and not self._given_up:
                plain.append(unit.members[0])
            else:
                self._submit(unit, patient=True)
        if members := [member for member in plain if member.parameter.requires_grad]:
            plan = self._plan_of(tuple([member.wire_name for member in members]))
            self._reduce_now(members, plan, [self._payload(member) for member in members])

    def _plan_of(self, names: tuple[str, ...]) -> operations.AllreducePlan:
        """A plan for these names, kept because most steps reduce the same ones."""
        if self._last_plan is None or self._last_plan[0] != names:
            self._last_plan = (names, self._sender.plan(names))
        return self._last_plan[1]

    def _reduce_now(
        self,
        members: Sequence[Member],
        plan: operations.AllreducePlan,
        payloads: list[torch.Tensor],
    ) -> None:
        """Reduce the gradients of plain units together, which costs less, and wait.

        A reduction that is not done becomes a submission, for ``_collect`` or ``give_up``.
        """
        outcomes: list[Any] = []
        done = False
        try:
            done = plan.reduce(payloads, outcomes)
        except NAMED_ERRORS as error:
            if len(outcomes) == len(members):
                raise  # no reduction failed: a signal handler raised it during the wait
            raise named(error, [members[len(outcomes)]]) from error
        finally:
            if not done:
                self._take_over(members, payloads, outcomes)
        if not done:
            for member, handle in zip(members, outcomes, strict=True):
                if handle is False:
                    self._submit(member.unit, patient=True)

    def _take_over(
        self, members: Sequence[Member], payloads: Sequence[torch.Tensor], outcomes: Sequence[Any]
    ) -> None:
        for member, payload, outcome in zip(members, payloads, outcomes, strict=False):
            if outcome is None or outcome is False:
                continue
            submission = Submission((member,), (payload,), (None,), (payload._version,))
            submission.handle = outcome
            self._submissions[member.unit] = submission

    def _settle(self) -> None:
        """Agree with the other ranks on parameters of which no rank had a gradient before."""
        undecided = self._watched.to_agree_on()
        if not undecided:
            return
        seen = [layout_of(self._own_gradient(member)) for member in undecided]
        # With op=Adasum the hooks take steps, with the learning rate of that moment.
        triable = self._views is None and self.settings.op != Adasum
        on_gpu = any(member.parameter.is_cuda for member in undecided)
        overlaps, tries = self._watched.agree(
            undecided,
            seen,
            overlaps=overlap.wanted_on_gpu() if on_gpu else overlap.wanted(),
            tries=triable and not on_gpu and overlap.may_be_tried(self.settings.process_set),
        )
        if not tries or self._trial is None:
            self._overlaps = overlaps
            self._trial = overlap.trial() if tries and not overlaps else None
        if self._views is not None:
            # Only members of groups have unknown layouts, and groups hold nothing sparse.
            self._views.add(
                [
                    member.parameter
                    for member, own in zip(undecided, seen, strict=True)
                    if not own.sparse and (member.layout.dense or member.unit.grouped)
                ]
            )

    def _own_gradient(self, member: Member) -> torch.Tensor | None:
        """The gradient, unless this class put it there because there was none."""
        gradient = member.parameter.grad
        filler = member.filler() if member.filler is not None else None
        return None if gradient is filler else gradient

    def _submit(self, unit: Unit, *, patient: bool) -> None:
        """Start reducing the gradients of ``unit``; parameters frozen by now are left out.

        If a reduction that was given up still uses the name, ``patient`` waits for it; otherwise
        the unit is left for ``synchronize``.
        """
        if self._given_up and not self._is_free(unit, patient):
            return
        members = [member for member in unit.members if member.parameter.requires_grad]
        if members:
            self._start(unit, members)

    def _is_free(self, unit: Unit, patient: bool) -> bool:
        """Whether no reduction of ``unit`` that was given up is left."""
        earlier = self._given_up.get(unit)
        if earlier is None:
            return True
        if not patient and not earlier.is_done():
            if self._warned:
                return False
            self._warned = True
            warnings.warn(
                f"The reduction of {earlier.label} was given up (by load_state_dict(), or by an "
                "error in step()), and not all ranks had begun it by the next backward pass. A "
                "rank that never does the earlier pass reduces its next gradient with this one: "
                "every rank must do the same number of backward passes.",
                RuntimeWarning,
                stacklevel=2,
            )
            return False
        del self._given_up[unit]
        earlier.discard()
        return True

    def _payload(self, member: Member) -> torch.Tensor:
        if self._views is None:
            return super()._payload(member)
        is_missing = member.parameter.grad is None
        if not self._views.move_in(member.parameter):
            return super()._payload(member)
        place = member.parameter.grad
        assert place is not None
        if is_missing:
            member.filler = weakref.ref(place)
        return place

    def _spoils_overlap(self) -> bool:
        """Whether gradients are changed before they are reduced, or this cannot be known."""
        return self._warned_of_change or any(
            is_view(m.parameter.grad) for m in self._watched.in_order
        )
