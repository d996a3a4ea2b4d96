"""The autopsy on the run page: what it found, what it waits for, why there is none, and how to ask for one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.web import findings
from tests.web import test_templates as pages
from tests.web.test_templates import EVIL, LOST, Tags, a_run


def page(autopsy: dict[str, Any] | None, *, status: str = "diverged", died: int | None = 38, **context: Any) -> Tags:
    forks = {"run_id": 7, "died_at": died, "begins_at": 30, "forks": []}
    run = a_run(status=status, divergence=LOST if status == "diverged" else None, step=38)
    given = {"series": pages.SERIES, "alerts": {"alerts": []}, "verdict": pages.VERDICT, "forks": forks, "fork_summary": ""}
    given |= {"fork_maps": [], "freezable": False} | context | ({"autopsy": autopsy} if autopsy else {})
    return pages.render("run.html", run=run, **given, **pages.CHARTS, **pages.PAST)


def words(tags: Tags) -> str:
    """The text of the section, without its charts' titles."""
    text = re.sub(r"\s+", " ", tags.text).partition("Charts of the layer")[0]
    return text[text.rindex(" Autopsy ") : text.rindex("Largest magnitude in each module")]


def state(tags: Tags) -> dict[str, str | None]:
    return next(tags.all("data-autopsy"))


def test_the_page_tells_from_the_first_sign_to_the_fatal_operation_what_was_measured() -> None:
    text = words(page(findings.DONE))
    for said in (
        "Step 38 was trained again with instruments, from the state after step 30.",
        "The repeated steps gave the recorded numbers bit for bit",
        "step 36 the trouble begins: its update moves an eigenvalue across the stability boundary",
        "step 38, forward pass first number that is not finite: scan_states in blocks.0.ssm",
        "scan_states in blocks.0.ssm gave −Inf in states at index (1, 98, 2) of (16, 100, 16), which is eigenvalue 2 of layer 0.",
        "19 numbers of its result are not finite.",
        "Its inputs were finite; the largest was 3.1e37.",
        "input3.42 3.30 target1.9 1.80",
        "It is finite: the loss is 0.75, and the largest number is 1.38e39. float32 ends at 3.4e38, so it cannot hold this",
        "Computed in less than float64 all the same: mse_loss.",
        "recurrence frozen ✓ lives to step 120",
        "batch left out ✕ dies at step 40",
        "a tenth of the learning rate (0.02) ✓ lives to step 120",
        "norms that scale before they square not tried: the model has no norm that squares",
        "Each starts from the state after step 30, before the trouble begins in step 36.",
    ):
        assert said in text, said


@pytest.mark.parametrize(
    ("change", "said", "unsaid"),
    [
        ({"float64": {"finite": True, "loss": 220.0, "largest": 1e9, "narrow": [], "first_nonfinite": None}},
         "a larger number arose inside scan_states, or scan_states computes in a narrower format", "so it cannot hold"),
        ({"float64": {"finite": False, "loss": "NaN", "largest": "Infinity", "narrow": [],
                      "first_nonfinite": findings.first(operation="log", module="loss", **{"pass": "loss"})}},
         "It is not finite either: in the loss, log in loss gave", "a larger number arose"),
        ({"trouble": {"step": 38, "kind": "fatal"}}, "; there was no earlier sign", "the trouble begins: there"),
        ({"first_nonfinite": None, "fatal": False}, "Step 38 has none.", "number of its result"),
        ({"first_nonfinite": None}, "The inputs of the first one were not finite themselves", "has none"),
        ({"float64": {"finite": False, "loss": "NaN", "largest": 7.0, "narrow": [], "first_nonfinite": findings.first()}},
         "It is not finite either, at the same place.", "It is finite"),
        ({"first_nonfinite": findings.first(operation="batch", module="model", tensor="input (16, 100, 1)", value="NaN", count=1,
                                            index=[0, 3, 0], layer=None, eigenvalue=None)},
         "the batch itself held NaN: input at index (0, 3, 0) of (16, 100, 1). One number of this tensor is not finite.",
         "Its inputs were finite"),
        ({"gradient": {"step": 36, "norm": 2130.0, "recorded": 2130.0, "repeated": 2130.0, "slope": None, "converged": False,
                       "agrees": None, "differs": None}},
         "It is not known whether the gradient of step 36 is right: the slope of the loss depends on the distance.",
         "is not the"),
        ({"gradient": {"step": 36, "norm": 2.0, "recorded": 740.0, "repeated": 2.0, "slope": 2.0, "converged": True,
                       "agrees": True, "differs": "kernels"}},
         "its norm is 2, and along it the loss changes by 2 per unit of distance. The run recorded a norm of 740; the same step "
         "without fused kernels gives 2.", "evaluation mode"),
        ({"batch": findings.DONE["batch"] | {"classes": dict.fromkeys(("smallest", "largest")) | {"ignored": 16, "count": 16}}},
         "All 16 targets are ignored, so nothing is scored.", "the model knows"),
        ({"counterfactuals": [findings.curve("unchanged", True, 38, comparable=False)], "hidden_state": "It keeps a state."},
         "These trials did not repeat this run, so nothing follows from them", "None"),
        ({"notes": ["the control did not repeat the run"]}, "The control did not repeat the run.", "to blame"),
        ({"counterfactuals": [findings.curve("unchanged", False, 38), findings.curve("tenth_of_rate", True, 50,
                              {"optimizer.lr": 0.1 + 0.2}), findings.curve("scaled_norm", False, 38, from_step=37)]},
         "a tenth of the learning rate (0.3) ✓ lives to step 50 norms that scale before they square ✕ dies at step 38 Each "
         "starts from the state after step 30, before the trouble begins in step 36. Only “norms that scale before they square” "
         "starts from the state after step 37.", "0.30000000000000004"),
        ({"batch": findings.DONE["batch"] | {"largest_input": None, "nonfinite_target": 5}},
         "inputno magnitude 3.30 target1.9 1.85", "None"),
    ],
)  # fmt: skip
def test_the_words_follow_from_the_findings(change: dict[str, Any], said: str, unsaid: str) -> None:
    text = words(page(findings.DONE | change))
    assert said in text
    assert unsaid not in text


@pytest.mark.parametrize(
    ("answer", "said", "form"),
    [
        (findings.answer("none"), "An autopsy trains this run again from its last good state, bit for bit", True),
        (findings.answer("queued"), "It waits until no run trains, because nobody asked for it.", True),
        (findings.answer("queued", requested_by="ada"), "The autopsy waits for a worker", False),
        (findings.answer("running"), "and 10 seconds more. This page shows the findings when they are there", False),
        (findings.answer("failed", reason="the task is not installed"), "It failed. The task is not installed.", True),
        (findings.answer("off", reason="autopsies are off on this server"), "autopsies are off on this server.", False),
        (findings.REFUSED, "No result. The repeated loss of step 33 is 0.7512, but the recorded loss is 0.7511.", True),
    ],
)
def test_every_state_says_what_to_expect(answer: dict[str, Any], said: str, form: bool) -> None:
    tags = page(answer)
    assert said in words(tags)
    assert bool(list(tags.all("data-autopsy-form"))) == form
    assert state(tags)["data-url"] == "/api/runs/7/autopsy"


def test_a_run_without_a_fatal_step_needs_the_step_to_repeat() -> None:
    step = [
        attrs for tag, attrs in page(findings.answer("none"), status="finished", died=None).tags if attrs.get("name") == "step"
    ]
    assert "required" in step[0]
    fatal = [attrs for tag, attrs in page(findings.answer("none")).tags if attrs.get("name") == "step"]
    assert (fatal[0]["placeholder"], "required" in fatal[0]) == ("38", False)


def test_there_is_no_autopsy_while_the_run_trains() -> None:
    assert not list(page(findings.answer("none"), status="running").all("data-autopsy"))
    assert not list(page(findings.answer("off"), status="finished").all("data-autopsy"))
    assert not list(page(None).all("data-autopsy"))


def test_hostile_names_in_findings_are_shown_as_text() -> None:
    hostile = findings.first(operation=EVIL, module=EVIL, tensor=EVIL)
    found = findings.DONE | {"first_nonfinite": hostile, "float64": findings.DONE["float64"] | {"narrow": [EVIL]}}
    tags = page(found | {"counterfactuals": [findings.curve("other_map", None, 3, {"model.x": EVIL}, reason=EVIL)]})
    assert words(tags).count("alert(1)") >= 6
    assert not [tag for tag, attrs in tags.tags if "onmouseover" in attrs]
    assert "alert(1)" in page(findings.answer("failed", reason=EVIL)).text


def test_the_verdict_says_what_was_measured_and_what_was_inferred() -> None:
    events = [pages.VERDICT["events"][0] | {"basis": "inferred"}]
    told = pages.VERDICT | {"confidence": "measured", "runner_up": "explosion", "cause": "arithmetic", "events": events,
                            "evidence": [pages.VERDICT["evidence"][0] | {"basis": "measured"}]}  # fmt: skip
    tags = page(findings.DONE, verdict=told)
    assert [attrs["data-basis"] for attrs in tags.all("data-basis")] == ["measured", "inferred", "measured"]
    assert "rounding in float32" in tags.text
    assert "The next best explanation: the whole training exploded." in tags.text
    older: dict[str, Any] = {key: value for key, value in pages.VERDICT.items() if key not in ("confidence", "runner_up")}
    older |= {name: [{k: v for k, v in one.items() if k != "basis"} for one in older[name]] for name in ("events", "evidence")}
    assert not list(page(findings.DONE, verdict=older).all("data-basis")), "a verdict of an older version says neither"
