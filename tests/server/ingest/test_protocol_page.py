"""What docs/protocol.md says about alerts and complex eigenvalues is what the server does."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import httpx
import numpy as np
import pytest

from server.ingest.message_schemas import AlertRecord
from server.ingest.records import read_records
from stablessm_core.report.frames import pack
from stablessm_core.report.messages import CatalogueMessage
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.forms import PHASES
from stablessm_core.telemetry.sink import Flush
from tests.server.http_service import application, client_of
from tests.server.reporting import Program

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()


def catalogue() -> CatalogueMessage:
    """The catalogue that the page shows."""
    (text,) = re.findall(r'```json\n(\{"kind": "CatalogueRecord".*?)```', PAGE, re.DOTALL)
    (form,) = re.findall(r"FORM is `(.*?)`", PAGE)
    head = json.dumps(json.loads(text.replace("FORM", form))).encode()
    (message,) = read_records(pack([len(head).to_bytes(4, "little") + head]))
    assert isinstance(message, CatalogueMessage)
    return message


def test_the_page_names_each_field_of_an_alert_and_each_phase() -> None:
    described = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))))
    assert {field.name for field in dataclasses.fields(Alert)} == set(AlertRecord.model_fields) <= described
    assert set(PHASES) <= described


@pytest.mark.slow
def test_a_layer_of_complex_eigenvalues_is_read_as_the_page_says(sqlite_url: str, tmp_path: Path) -> None:
    with client_of(application(sqlite_url, tmp_path, runs_per_minute=0)) as client:
        program = Program(client)
        w, dt, v = np.array([0.0, 1.0]), 0.1, np.array([2.0, -3.0])
        row = np.array([[0.5, 0.5, *w, dt, *v, 0.1, 0.1]] * 4, np.float32).T
        answer = program.post(catalogue(), Flush([Block("ssm/0", 0, 1, 1, row)], [], 4, None))
        assert answer.status_code == 200, answer.text
        expected = np.exp(dt * (-np.exp(w) + 1j * v))
        np.testing.assert_allclose(values(client, program, "eigenvalue"), [np.abs(expected)] * 4, rtol=1e-6)
        np.testing.assert_allclose(values(client, program, "phase"), [np.angle(expected)] * 4, rtol=1e-6)
        np.testing.assert_allclose(values(client, program, "rate"), [np.exp(w)] * 4, rtol=1e-6)


def values(client: httpx.Client, program: Program, kind: str) -> object:
    return client.get(f"/api/runs/{program.run_id}/series/ssm/0/{kind}").json()["value"]
