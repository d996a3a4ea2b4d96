"""The autopsy: a run is trained again up to one step, and this step is trained with instruments.

    replay        from the last good state, compared bit for bit with the recorded rows
    the batch     largest numbers, compared with the usual ones
    instruments   the first non-finite result in the order of computation that reached the loss or the gradients
    float64       the same step from the same state, computed more precisely
    the onset     the step that first shows the trouble, compared with the step before it
    the gradient  of a suspect step, compared with the slope of the loss and with the recorded one
    the form      whether the layers still compute their recorded form
    trials        what would have become of the run with one thing changed before the trouble

Nothing is recorded, and the run's files stay as they are. docs/autopsy.md describes the findings.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from stablessm_core.autopsy.batches import batch_facts, check_reproducible
from stablessm_core.autopsy.bench import Bench, build_bench
from stablessm_core.autopsy.counterfactuals import try_changes
from stablessm_core.autopsy.deadline import Deadline, Refused
from stablessm_core.autopsy.forms import measure_forms
from stablessm_core.autopsy.gradient import check_gradient
from stablessm_core.autopsy.onset import measure_onset
from stablessm_core.autopsy.repeat import Repeated, repeat
from stablessm_core.autopsy.replay import BitsDiffer, Replay, replay, state_before, state_from_the_start
from stablessm_core.autopsy.request import AutopsyRequest, refused
from stablessm_core.autopsy.rows import replayed_rows
from stablessm_core.training.checkpoint import Checkpoint

COPIES = 11  # states in memory: the run's, up to six kept ones, the instrumented step and its float64 form (twice the size)
KEPT_PER_ACTIVATION = 12  # values kept for each activation of the widest tensors while a step runs operation by operation
AGREES = {"float32": 1e-3, "bfloat16": 0.05}  # relative difference of a loss that two ways of computing it may have
MOST_OF_NOTE = 1000  # characters

ROUNDING = "With instruments, which round differently, the step stayed finite. Its first non-finite result is unknown."
LARGE_WEIGHT = (
    "Every number of the step is finite. The recorder calls it fatal because the squares of a weight do not fit into float32."
)

log = logging.getLogger(__name__)


def perform(request: AutopsyRequest, should_stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """The findings of an autopsy, or the reason why there are none (`refused`). docs/autopsy.md describes every field.

    should_stop: asked every few steps; if it returns True, the autopsy ends without a result. Random states, the number of
    threads and the run's files stay as they are. Never raises an error because of the run: whatever fails is a reason.
    """
    deadline = Deadline(request.seconds, should_stop)
    try:
        with _run_threads(request), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            return _performed(request, deadline)
    except BitsDiffer as error:
        return refused(request.step, str(error), bits_equal=False, seconds=round(deadline.elapsed(), 3))
    except Refused as error:
        return refused(request.step, str(error), seconds=round(deadline.elapsed(), 3))
    except Exception as error:
        log.warning("the autopsy of step %d failed", request.step, exc_info=error)
        reason = f"The autopsy failed: {type(error).__name__}: {error}"
        return refused(request.step, reason, seconds=round(deadline.elapsed(), 3))


def _performed(request: AutopsyRequest, deadline: Deadline) -> dict[str, Any]:
    config = request.config
    if not 1 <= request.step <= config.train.steps:
        raise Refused(f"Step {request.step} is not a step of this run, which has the steps 1 to {config.train.steps}.")
    bench = _bench(request)
    check_reproducible(bench, request.step)
    done = replay(bench, request, deadline)
    findings: dict[str, Any] = {
        "step": request.step,
        "from_step": done.from_step,
        "bits_equal": True,
        "refused": None,
        "fatal": not done.row.finite,
        "loss": float(done.row.loss),
        "batch": batch_facts(bench, request.step),
        "replayed": replayed_rows(bench, done.rows),
        "evidence_changed": None,
        "notes": done.notes,
    }
    findings |= dict.fromkeys(("onset", "hidden_state", "gradient", "form", "trouble"))
    findings |= _instrumented(bench, done, findings["fatal"])
    expected = request.trouble
    request = _plan(request, findings)  # the replay has filled the gaps of the record
    findings |= _suspects(bench, request, done, deadline)
    request = _plan(request, findings)
    if expected is not None and request.trouble is not None and expected.step != request.trouble.step:
        done.notes.append(
            f"The trials start before step {request.trouble.step:,}, because the measurements show that the trouble began there. "
            f"The recorded rows let one expect step {expected.step:,}."
        )
    findings["trouble"] = None if request.trouble is None else request.trouble._asdict()
    findings["counterfactuals"] = _try_changes(bench, request, done, deadline, findings["hidden_state"])
    return findings | {"seconds": round(deadline.elapsed(), 3)}


def _suspects(bench: Bench, request: AutopsyRequest, done: Replay, deadline: Deadline) -> dict[str, Any]:
    """What may have begun the trouble: the loss function, a backward pass, a layer that departs from its form."""
    shown = request.step if request.trouble is None else min(request.trouble.first_shown, request.step)

    def attempt(problem: str, measure: Callable[[], Any]) -> Any:
        return _try(problem, measure, done.notes)

    onset, hidden_state = attempt(
        "The step that first shows the trouble cannot be measured", lambda: measure_onset(bench, done, shown, deadline)
    ) or (None, None)
    gradient = attempt("The gradient cannot be compared with the loss", lambda: check_gradient(bench, done, request, deadline))
    form = attempt("The forms of the layers cannot be checked", lambda: measure_forms(bench, done.before))
    return {"onset": onset, "hidden_state": hidden_state, "gradient": gradient, "form": form}


def _try(problem: str, measure: Callable[[], Any], notes: list[str]) -> Any:
    """The measurement; None, with a note that begins with `problem`, if the run's code does not allow it."""
    try:
        return measure()
    except Refused:
        raise
    except Exception as error:
        log.warning("%s", problem, exc_info=error)
        notes.append(f"{problem}: {type(error).__name__}: {error}"[:MOST_OF_NOTE])
        return None


def _bench(request: AutopsyRequest) -> Bench:
    device = str(request.environment.get("device", ""))
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise Refused(f"The run was trained on {device}, and this machine has no usable CUDA device.")
    try:
        bench = build_bench(request.config, request.data_root, request.environment)
    except Exception as error:
        task = request.config.task.name
        raise Refused(f"The run with the task {task!r} cannot be built here: {type(error).__name__}: {error}") from error
    if device and torch.device(device).type != bench.device.type:
        raise Refused(f"The run was trained on {device}; here it would run on {bench.device}.")
    if (needed := memory_needed(bench)) > request.memory:
        raise Refused(
            f"The autopsy of this run would need about {needed / 2**20:,.0f} MiB of memory for copies; it may use "
            f"{request.memory / 2**20:,.0f} MiB."
        )
    return bench


def memory_needed(bench: Bench) -> int:
    """An upper estimate of the bytes that an autopsy needs in addition to what training needs."""
    config, model = bench.config.train, bench.config.model
    hidden = model.d_model * model.mlp_expansion
    widths = sum(max(model.d_model, section.activations(model.d_model), hidden) for section in model.sections())
    activations = config.batch_size * bench.task.length * widths
    return COPIES * bench.state_bytes() + 8 * KEPT_PER_ACTIVATION * activations


def _instrumented(bench: Bench, done: Replay, fatal: bool) -> dict[str, Any]:
    """The step with instruments, in the run's precision and in float64."""
    narrow = repeat(bench, done.before)
    first, earlier = narrow.first, done.kept.get(done.row.step - 2)
    if first is not None and first["operation"] == "weights" and earlier is not None:
        first = repeat(bench, earlier).first or first  # the update of the step before made the weights non-finite
    try:
        wide = _in_float64(bench, done.before)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        done.notes.append(f"The step cannot be computed in float64: {type(error).__name__}: {error}")
        wide = None
    loss = float(done.row.loss)
    if fatal and first is None:
        same = math.isfinite(loss) and math.isfinite(done.row.grad_norm)
        done.notes.append(LARGE_WEIGHT if same else ROUNDING)
    return {
        "first_nonfinite": first if fatal else None,
        "instruments": {
            "loss": narrow.loss,
            "agrees": _agree(loss, narrow.loss, bench.config.train.precision),
            "finite": narrow.finite,
            "operations": narrow.operations,
        },
        "modules": _modules(narrow, wide),
        "float64": None
        if wide is None
        else {
            "finite": wide.finite,
            "loss": wide.loss,
            "largest": wide.largest,
            "narrow": wide.narrow,
            "states": wide.states,
            "first_nonfinite": wide.first,
        },
    }


def _in_float64(bench: Bench, before: Checkpoint) -> Repeated:
    return repeat(bench, before, dtype=torch.float64)


def _agree(one: float, other: float, precision: str) -> bool:
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.isfinite(one) == math.isfinite(other)
    return math.isclose(one, other, rel_tol=AGREES[precision], abs_tol=1e-6)


def _modules(narrow: Repeated, wide: Repeated | None) -> list[dict[str, Any]]:
    """The modules of the forward pass in the order of computation, then the loss."""
    others = [] if wide is None else [(m.module, m.largest) for m in wide.modules]
    rows = []
    for m in narrow.modules:
        at = next((i for i, (module, _) in enumerate(others) if module == m.module), None)
        largest = None if at is None else others.pop(at)[1]
        rows.append(
            {"module": m.module, "pass": m.stage, "largest": m.largest, "largest_float64": largest, "nonfinite": m.nonfinite}
        )
    return rows


def _plan(request: AutopsyRequest, findings: dict[str, Any]) -> AutopsyRequest:
    """The request with the trouble judged again with the findings so far, if the request can do so."""
    if request.plan is None:
        return request
    try:
        trouble = request.plan(findings | {"counterfactuals": []})
    except Exception as error:
        log.warning("the autopsy was not planned again", exc_info=error)
        return request
    return request if trouble is None else replace(request, trouble=trouble)


def _try_changes(
    bench: Bench, request: AutopsyRequest, done: Replay, deadline: Deadline, hidden_state: str | None
) -> list[dict[str, Any]]:
    trouble = request.trouble
    if done.row.finite and trouble is None:
        return []
    begin = request.step if trouble is None else min(trouble.step, request.step)
    start = state_before(bench, done, begin, deadline) or state_from_the_start(bench, request, done, begin, deadline)
    if start is None:
        done.notes.append("No change was tried: no state before the trouble could be restored in time.")
        return []
    kind = "fatal" if trouble is None else trouble.kind
    tried, why = try_changes(bench, start, done.before, row=done.row, rows=done.rows, kind=kind, deadline=deadline)
    if why is not None:
        done.notes.append(why)
    return tried if hidden_state is None else [entry | {"comparable": False} for entry in tried]


@contextmanager
def _run_threads(request: AutopsyRequest) -> Iterator[None]:
    """Compute with as many threads as the run, because sums depend on it."""
    before, wanted = torch.get_num_threads(), request.environment.get("threads")
    try:
        if wanted and wanted != before:
            torch.set_num_threads(int(wanted))
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
