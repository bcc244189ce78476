"""The services for a team hang together. Docker is not at hand in tests: the file is read, not started."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

FILE = Path(__file__).parents[1] / "docker-compose.yaml"


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def test_it_has_mlflow_postgres_an_artifact_store_vllm_a_search_engine_and_a_worker(compose):
    assert compose["services"].keys() == {"postgres", "artifacts", "mlflow", "vllm", "qdrant", "worker"}


def test_images_are_of_a_version_and_qdrants_is_that_of_its_client(compose):
    images = {name: service["image"] for name, service in compose["services"].items()}
    assert all(re.search(r":[\w.-]*\d", image) for image in images.values())
    assert images["qdrant"] == f"qdrant/qdrant:v{version('qdrant-client')}"


def test_what_a_service_waits_for_and_keeps_is_declared(compose):
    named = set()
    for service in compose["services"].values():
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] != "service_healthy" or "healthcheck" in compose["services"][other]
        named |= {volume.partition(":")[0] for volume in service.get("volumes", [])}
    assert named - {"."} == compose["volumes"].keys()


def test_passwords_come_from_the_environment_and_ports_are_open_to_this_machine_alone(compose):
    for name, service in compose["services"].items():
        for key, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|ACCESS_KEY|QDRANT.*API_KEY", key):
                assert re.fullmatch(r"\$\{\w+:\?set it in \.env\}", value), f"{name}: {key}"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_the_addresses_that_services_are_given_are_those_of_services(compose):
    hosts = set(re.findall(r"\w+://([\w-]+)[:/]", yaml.safe_dump(compose["services"])))
    assert hosts - {"localhost", "mlflow"} <= compose["services"].keys()
