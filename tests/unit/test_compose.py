"""docker-compose.yml as far as it can be checked without a Docker engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from parley.cli import main
from parley.settings import Settings
from parley.topics import load_topics

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = {
    "POSTGRES_PASSWORD": "secret",
    "PARLEY_ID_KEY": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0",
    "GRAFANA_PASSWORD": "secret",
}
ROLES = {
    "moderation",
    "orchestrator",
    *(f"worker-{pool}" for pool in load_topics().pools),
    "history-messages",
    "history-sessions",
    "usage",
    "edge",
}
SPECIFICATION = jsonschema.Draft7Validator(json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text()))
"""Of the compose-spec project (github.com/compose-spec/compose-spec, Apache-2.0), as it was on 2026-06-23."""
DOCKERFILE = (ROOT / "infra" / "docker" / "Dockerfile").read_text()


def interpolate(text: str) -> str:
    """What Compose makes of ${NAME:?message} and ${NAME:-default}."""
    pattern = re.compile(r"\$\{(\w+)(?::([?-])([^}]*))?\}")
    return pattern.sub(lambda m: VARIABLES.get(m[1]) or (m[3] if m[2] == "-" else ""), text)


COMPOSE: dict[str, Any] = yaml.safe_load(interpolate((ROOT / "docker-compose.yml").read_text()))
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service.get("image") == "parley:local"}


def test_it_satisfies_the_compose_specification() -> None:
    SPECIFICATION.validate(COMPOSE)


def test_the_specification_would_notice_a_mistake() -> None:
    wrong = {**COMPOSE, "services": {**SERVICES, "edge": {**SERVICES["edge"], "prots": []}}}
    with pytest.raises(jsonschema.ValidationError):
        SPECIFICATION.validate(wrong)


def test_every_role_has_a_service() -> None:
    assert OURS.keys() == ROLES | {"lag", "topics", "migrate", "tools"}


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_a_setting_with_a_value_that_it_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = set(Settings.model_fields)
    for variable, value in OURS[name]["environment"].items():
        assert variable.removeprefix("PARLEY_").split("__")[0].lower() in known, variable
        monkeypatch.setenv(variable, value)
    settings = Settings()
    assert settings.kafka.bootstrap == "kafka:9092"
    assert settings.messages.hosts == ("scylla",)
    assert settings.postgres.dsn.get_secret_value() == "postgresql://parley:secret@postgres:5432/parley"
    assert len(settings.keys) == 1
    assert settings.metrics_port == 9100
    for pool in settings.topics.pools:
        assert settings.engine_addresses(pool, 0)


@pytest.mark.parametrize("name", sorted(ROLES | {"lag", "topics", "migrate"}))
def test_every_command_is_one_of_the_command_line(name: str) -> None:
    """Parsed by the command line itself, up to where it would begin to work."""
    command: click.Command = main
    context = click.Context(main, info_name="parley")
    arguments = list(OURS[name]["command"])
    while isinstance(command, click.Group):
        given, command_found, arguments = command.resolve_command(context, arguments)
        assert command_found is not None, given
        command = command_found
        context = click.Context(command, info_name=given, parent=context)
        if isinstance(command, click.Group) and not arguments:
            pytest.fail(f"{name}: {given} needs a subcommand")
    command.parse_args(context, arguments)


def test_workers_serve_the_pools_they_are_named_for() -> None:
    for pool in load_topics().pools:
        assert SERVICES[f"worker-{pool}"]["command"] == ["worker", "--pool", pool]


def test_static_members_have_names_of_their_own() -> None:
    names = [SERVICES[role]["environment"]["PARLEY_INSTANCE"] for role in ROLES]
    assert len(set(names)) == len(ROLES)


def test_only_loopback_is_published_and_only_what_people_open() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published.keys() == {"edge", "prometheus", "grafana"}
    for ports in published.values():
        assert all(port.startswith("127.0.0.1:") for port in ports)


def test_no_image_floats() -> None:
    images = [service["image"] for service in SERVICES.values()]
    images += re.findall(r"^FROM (\S+:\S+)", DOCKERFILE, re.MULTILINE)
    assert len(images) > 10
    for image in images:
        assert re.search(r":(?!latest)[\w.-]+$", image), image


def test_nobody_runs_as_root_and_locks_have_hashes() -> None:
    for target in ("engine", "parley"):
        stage = DOCKERFILE.split(f" AS {target}\n")[1].split("\nFROM ")[0]
        assert "\nUSER parley\n" in stage
    installs = re.findall(r"pip install [^&|\n]*", DOCKERFILE)
    assert len(installs) == 4
    for install in installs:
        assert "--require-hashes" in install or install.endswith("--no-deps --editable ."), install


def test_what_the_image_copies_exists_and_passes_the_ignore_file() -> None:
    passed = {
        line[1:] for line in (ROOT / "infra/docker/Dockerfile.dockerignore").read_text().split() if line[0] == "!"
    }
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert source.split("/")[0] in passed, source


def test_builds_name_stages_of_the_dockerfile() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))
    targets = {service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert targets == {"parley", "engine"}
    assert targets <= stages


def test_whoever_is_waited_for_has_a_health_check_or_ends() -> None:
    for name, service in SERVICES.items():
        dependencies = service.get("depends_on", {})
        for other, how in dependencies.items() if isinstance(dependencies, dict) else ():
            assert other in SERVICES, f"{name} waits for {other}"
            if how["condition"] == "service_healthy":
                assert "test" in SERVICES[other]["healthcheck"]
            else:
                assert SERVICES[other]["restart"] == "no"


def test_both_profiles_serve_the_same_engine_address() -> None:
    for engine in ("triton-cpu", "triton-gpu"):
        assert SERVICES[engine]["networks"]["default"]["aliases"] == ["triton-smol"]
    assert {SERVICES[engine]["profiles"][0] for engine in ("triton-cpu", "triton-gpu")} == {"cpu", "gpu"}


def test_the_example_environment_names_what_is_required() -> None:
    required = set(re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yml").read_text()))
    example = set(re.findall(r"^(\w+)=", (ROOT / "infra/docker/env.example").read_text(), re.MULTILINE))
    assert required == VARIABLES.keys()
    assert required <= example


def test_prometheus_scrapes_every_role_and_engine_and_the_lag_exporter() -> None:
    config = yaml.safe_load((ROOT / "infra/prometheus/prometheus.yml").read_text())
    targets = {t for job in config["scrape_configs"] for entry in job["static_configs"] for t in entry["targets"]}
    roles = {f"{role}:{8080 if role == 'edge' else 9100}" for role in ROLES}
    assert targets == roles | {"lag:9100", "triton-smol:8002", "triton-synthetic:8002"}
    assert OURS["lag"]["command"][:3] == ["lag", "--serve", "0.0.0.0:9100"]


def test_prometheus_has_the_rules_that_its_configuration_names() -> None:
    config = yaml.safe_load((ROOT / "infra/prometheus/prometheus.yml").read_text())
    assert "./infra/prometheus:/etc/prometheus:ro" in SERVICES["prometheus"]["volumes"]
    assert config["rule_files"] == ["rules/*.yml"]
    assert len(list((ROOT / "infra/prometheus/rules").glob("*.yml"))) >= 4
