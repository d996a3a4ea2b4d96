"""The layer of docs/extending.md as an installed package: configuration, training, resume, and clear errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.extending import ROOT, install_plug_in

pytestmark = pytest.mark.long

CONFIG = """
import sys
from pathlib import Path
from stablessm_core.spec.config import ConfigError, parse_config

def config(steps):
    return parse_config({
        "task": {"name": "polynomial_memory", "length": 16},
        "model": {"layer": {"name": "turning", "max_angle": 2.0}, "d_model": 4},
        "train": {"steps": steps, "batch_size": 4, "eval_every": 0, "checkpoint_every": 3, "device": "cpu"},
    })
"""
TRAIN = (
    CONFIG
    + """
from stablessm_core.training.train import train
from stablessm_core.telemetry.sink import MemorySink

def trained(folder, resume=None):
    sink, place = MemorySink(), Path(sys.argv[1])
    return train(config(6), sink=sink, data_root=place, checkpoint_dir=place / folder, resume=resume), sink
"""
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    install_plug_in(tmp_path / "site", "turning")
    return tmp_path / "site"


def run(site: Path, code: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    return subprocess.run([sys.executable, "-c", code, site.parent], env=environment, capture_output=True, text=True)


def printed(site: Path, code: str) -> str:
    done = run(site, code)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_a_plug_in_layer_is_configured_without_torch(site: Path) -> None:
    code = CONFIG + "print(config(1).model.layer.max_angle, 'torch' in sys.modules)"
    assert printed(site, code) == "2.0 False"


def test_a_plug_in_layer_is_trained_and_resumed_bit_for_bit(site: Path) -> None:
    code = (
        TRAIN
        + """
whole, sink = trained("whole")
assert whole.status == "finished" and sink.catalogue["ssm/0/eigenvalue"].form["phase"] == "radians", whole
(checkpoint,) = Path(sys.argv[1], "whole").glob("*3.*")
again, rest = trained("resumed", checkpoint)
assert again.status == "finished", again
for kind in ("weight", "phase_weight"):
    steps, values = rest.series(f"ssm/0/{kind}")
    assert list(steps) == [4, 5, 6]
    assert (values == sink.series(f"ssm/0/{kind}")[1][3:]).all()
print("done")
"""
    )
    assert printed(site, code).endswith("done")


def test_a_plug_in_layer_whose_form_does_not_match_its_recurrence_is_refused_by_name(site: Path) -> None:
    layer = site / "stablessm_turning" / "layer.py"
    layer.write_text(layer.read_text().replace('phase="radians"', 'phase="angle"'))
    done = run(site, TRAIN + "trained('wrong')")
    assert done.returncode != 0
    assert "FormError: layer 'turning': its form does not match its recurrence" in done.stderr
    assert "phase 'angle'" in done.stderr


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("from pydantic", "import no_such_module\nfrom pydantic", "No module named 'no_such_module'"),
        (
            'Literal["turning"] = "turning"',
            'Literal["other"] = "other"',
            "the entry point is named 'turning', its section 'other'",
        ),
        ("(LayerSection)", "", "is not a subclass of stablessm_core.spec.layer.LayerSection"),
        ("    built_by:", "    made_by:", 'must set built_by = "module:name"'),
    ],
)
def test_an_unusable_plug_in_layer_is_refused_with_the_reason(site: Path, before: str, after: str, reason: str) -> None:
    section = site / "stablessm_turning" / "section.py"
    section.write_text(section.read_text().replace(before, after))
    code = CONFIG + "try: config(1)\nexcept ConfigError as error: print(error)\nparse_config({'task': {'name': 'digits'}})"
    answer = printed(site, code)
    assert answer.startswith("model.layer.name: 'turning' cannot be used here (")
    assert reason in answer
    assert "allowed: stable_ssm, s4," in answer


def test_a_plug_in_cannot_take_the_name_of_another_layer(site: Path) -> None:
    points = next(site.glob("*.dist-info")) / "entry_points.txt"
    points.write_text("[stablessm.layers]\nlru = stablessm_turning.section:Turning\n")
    code = "from stablessm_core.spec.layers import LAYERS, REFUSED\nprint(LAYERS['lru'].__module__, REFUSED['lru'])"
    assert printed(site, code) == "stablessm_core.spec.layers.lru ValueError: the name is taken by stablessm_core.spec.layers.lru"
