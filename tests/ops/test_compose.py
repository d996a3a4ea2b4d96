"""The compose file is valid, has only defined references, publishes ports only on loopback, and contains no secret."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(?::?([-?+])([^}]*))?\}")


@pytest.fixture(scope="module")
def text() -> str:
    return COMPOSE.read_text()


@pytest.fixture(scope="module")
def compose(text: str) -> dict[str, Any]:
    return yaml.safe_load(text)


@pytest.mark.slow
def test_the_compose_file_follows_the_compose_specification() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_docker_accepts_the_compose_file_with_and_without_a_gpu(tmp_path: Path) -> None:
    if shutil.which("docker") is None or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker compose is not installed; the schema and reference tests do not need it")
    environment = tmp_path / "env"
    environment.write_text(re.sub(r"^(\w+)=$", r"\1=filled", (ROOT / ".env.example").read_text(), flags=re.MULTILINE))
    for files in (["docker-compose.yml"], ["docker-compose.yml", "docker-compose.cpu.yml"]):
        options = [part for file in files for part in ("-f", str(ROOT / file))]
        command = ["docker", "compose", "--env-file", str(environment), *options, "config", "-q"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_every_reference_in_the_compose_file_is_defined(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for needed, condition in service.get("depends_on", {}).items():
            assert needed in services, f"{name} depends on {needed}, which is not defined"
            if condition["condition"] == "service_healthy":
                assert "healthcheck" in services[needed], f"{name} waits for the health of {needed}, which has no health check"
        assert set(service.get("networks", [])) <= set(compose["networks"]), name
        assert set(service.get("secrets", [])) <= set(compose.get("secrets", {})), name
        for mount in service.get("volumes", []):
            source = re.sub(VARIABLE, ".", mount).partition(":")[0]
            assert source.startswith((".", "/")) or source in compose["volumes"], (
                f"{name} mounts {mount}, which is not a defined volume"
            )
        if "build" in service:
            stages = re.findall(r"^FROM .* AS (\S+)$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
            assert service["build"]["target"] in stages, name
    used = {network for service in services.values() for network in service.get("networks", [])}
    mounted = {mount.partition(":")[0] for service in services.values() for mount in service.get("volumes", [])}
    assert used == set(compose["networks"])
    assert set(compose["volumes"]) <= mounted


def test_services_wait_for_a_migrated_database(compose: dict[str, Any]) -> None:
    for name in ("server", "worker"):
        needs = compose["services"][name]["depends_on"]
        assert needs["roles"]["condition"] == "service_completed_successfully"
    assert compose["services"]["roles"]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    for name in ("server", "worker"):
        needs = compose["services"][name]["depends_on"]
        assert needs["postgres"]["condition"] == needs["redis"]["condition"] == "service_healthy"


def test_ports_are_published_on_loopback_only(compose: dict[str, Any]) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published), published
    for name in ("postgres", "redis"):
        networks = [compose["networks"][network] for network in compose["services"][name]["networks"]]
        assert all(network.get("internal") for network in networks), f"{name} can be reached from outside"


def test_the_worker_has_a_gpu_and_an_init_process_that_reaps_its_training_processes(compose: dict[str, Any]) -> None:
    worker = compose["services"]["worker"]
    devices = worker["deploy"]["resources"]["reservations"]["devices"]
    assert any("gpu" in device["capabilities"] for device in devices)
    assert worker["init"] is True


def test_workers_of_one_machine_share_their_gpu_locks_and_take_one_gpu_each(compose: dict[str, Any]) -> None:
    worker = compose["services"]["worker"]
    folder = worker["environment"]["STABLESSM_GPU_LOCKS"]
    assert f"gpu-locks:{folder}" in worker["volumes"]
    assert (
        f"-o stablessm -g stablessm -m 1777 {folder}\n" in (ROOT / "Dockerfile").read_text()
    )  # a new volume inherits this folder's owner and mode
    assert worker["environment"]["STABLESSM_SLOTS"] == "${STABLESSM_SLOTS:-1}"


def test_redis_never_evicts_or_loses_the_queue(compose: dict[str, Any]) -> None:
    command = " ".join(compose["services"]["redis"]["command"])
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command
    assert "--aclfile" in command


def test_secrets_come_from_the_environment_only(text: str, compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN|AUTH|_URL", variable):
                assert VARIABLE.search(value), f"{name}: {variable} must come from a variable"
    secrets = {name for name, _, _ in VARIABLE.findall(text) if re.search("PASSWORD|TOKEN", name)}
    assert len(secrets) > 1
    required = {name for name, kind, _ in VARIABLE.findall(text) if kind == "?"}
    assert secrets <= required, "every secret must be required, or compose would start with an empty secret"


def test_only_the_migration_service_has_the_owner_s_password(compose: dict[str, Any]) -> None:
    owner = re.search(r"\$\{(\w+)", compose["services"]["postgres"]["environment"]["POSTGRES_PASSWORD"])
    assert owner is not None
    addresses = {
        name: service.get("environment", {}).get("STABLESSM_DATABASE_URL", "") for name, service in compose["services"].items()
    }
    assert [name for name, address in addresses.items() if owner[1] in address] == ["migrate"]
    assert "@postgres" in addresses["server"]
    assert "@postgres" in addresses["worker"]


def test_the_example_environment_contains_every_variable_and_no_secret(text: str) -> None:
    lines = [line for line in (ROOT / ".env.example").read_text().splitlines() if line and not line.startswith("#")]
    example = dict(line.split("=", 1) for line in lines)
    assert set(example) == {name for name, _, _ in VARIABLE.findall(text)}
    assert not any(example[name] for name in example if re.search("PASSWORD|TOKEN", name))
    ignored = subprocess.run(["git", "check-ignore", "-q", ".env"], cwd=ROOT)
    assert ignored.returncode == 0, "git must ignore .env, because it contains secrets"


def test_the_cpu_override_changes_only_existing_services(compose: dict[str, Any]) -> None:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!reset", lambda loader, node: "reset")
    override = yaml.load((ROOT / "docker-compose.cpu.yml").read_text(), Loader=Loader)
    assert set(override["services"]) <= set(compose["services"])
    assert override["services"]["worker"]["deploy"] == "reset", "the override must remove the GPU reservation"


def test_images_have_exact_versions(compose: dict[str, Any]) -> None:
    built = {service["image"] for service in compose["services"].values() if "build" in service}
    foreign = {service["image"] for service in compose["services"].values()} - built
    bases = re.findall(r"^ARG PYTHON=(.*)$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert foreign
    assert bases
    for image in [*foreign, *(f"python:{base}" for base in bases)]:
        assert re.search(r":\d+\.\d+(\.\d+)?-", image), f"{image} is not an exact version"
        assert image.count(".") == (1 if image.startswith("postgres") else 2), image


def test_containers_are_read_only_unprivileged_and_limited_in_resources(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert set(service.get("cap_add", [])) <= {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}, name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert service["mem_limit"], name
        assert service["pids_limit"] > 0, name
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name


def test_the_worker_s_caches_are_on_a_writable_and_executable_tmpfs(compose: dict[str, Any]) -> None:
    worker = compose["services"]["worker"]
    assert any(place.startswith("/tmp:") and "exec" in place for place in worker["tmpfs"]), (
        "compiled kernels are executed from /tmp"
    )
    stage = (ROOT / "Dockerfile").read_text().partition(" AS worker\n")[2]
    for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "HOME"):
        assert re.search(rf"{variable}=/tmp", stage), variable


def test_backups_are_scheduled_and_use_a_read_only_database_role(compose: dict[str, Any]) -> None:
    backup = compose["services"]["backup"]
    assert backup["command"][:3] == ["stablessm", "backup", "/backups"]
    assert "--every" in backup["command"]
    assert "worker:/var/lib/stablessm:ro" in backup["volumes"]
    assert "stablessm_backup:" in backup["environment"]["STABLESSM_DATABASE_URL"]
