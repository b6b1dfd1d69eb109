"""Settings from the environment."""

from __future__ import annotations

from base64 import b64encode

import pytest
from pydantic import ValidationError

from parley.settings import Settings
from parley.settings_table import rows


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that says nothing of Parley."""
    import os

    for name in [name for name in os.environ if name.startswith("PARLEY_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def test_everything_has_a_default() -> None:
    settings = Settings()
    assert settings.kafka.bootstrap == "127.0.0.1:9092"
    assert settings.topics.session_partitions == 16


def test_the_environment_overrides(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("PARLEY_KAFKA__BOOTSTRAP", "k1:9092,k2:9092")
    bare.setenv("PARLEY_PROTOCOL__WINDOW", "7")
    bare.setenv("PARLEY_INSTANCE", "worker-1")
    bare.setenv("PARLEY_CLUSTER__REPLICATION", "3")
    settings = Settings()
    assert (settings.kafka.bootstrap, settings.protocol.window) == ("k1:9092,k2:9092", 7)
    assert settings.kafka.session_timeout_ms == 3_000, "the group's other fields keep their defaults"
    assert settings.instance == "worker-1"
    assert settings.topics.replication == 3


def test_settings_do_not_change(bare: pytest.MonkeyPatch) -> None:
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.instance = "other"  # type: ignore[misc]


def test_a_value_that_is_no_number_is_refused_by_name(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("PARLEY_PROTOCOL__WINDOW", "many")
    with pytest.raises(ValidationError, match=r"protocol\.window"):
        Settings()


def test_a_misspelt_setting_of_a_group_is_refused(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("PARLEY_KAFKA__BOOTSTRAPS", "k1:9092")
    with pytest.raises(ValidationError, match="bootstraps"):
        Settings()


def test_keys_are_base64_the_current_one_first(bare: pytest.MonkeyPatch) -> None:
    new, old = b"new" * 8, b"old" * 8
    bare.setenv("PARLEY_ID_KEYS", f'["{b64encode(new).decode()}", "{b64encode(old).decode()}"]')
    assert Settings().keys == (new, old)


def test_no_keys_say_which_setting_is_missing() -> None:
    with pytest.raises(ValueError, match="PARLEY_ID_KEYS"):
        _ = Settings().keys


def test_secrets_are_not_printed(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("PARLEY_ID_KEYS", '["c2VjcmV0LXNlY3JldA=="]')
    bare.setenv("PARLEY_POSTGRES__DSN", "postgresql://parley:hunter2@db/parley")
    printed = repr(Settings()) + str(Settings())
    assert "c2VjcmV0" not in printed
    assert "hunter2" not in printed


@pytest.mark.parametrize(
    ("given", "addresses"),
    [('{"smol": "a:1"}', ("a:1",)), ('{"smol": ["a:1", "b:2"]}', ("a:1", "b:2"))],
)
def test_engines_of_a_pool(bare: pytest.MonkeyPatch, given: str, addresses: tuple[str, ...]) -> None:
    bare.setenv("PARLEY_ENGINES", given)
    for own in range(len(addresses)):
        assert Settings().engine_addresses("smol", own)[0] == addresses[own]
        assert set(Settings().engine_addresses("smol", own)) == set(addresses)
    with pytest.raises(ValueError, match="'synthetic'"):
        Settings().engine_addresses("synthetic", 0)
    with pytest.raises(ValueError, match="engine 9"):
        Settings().engine_addresses("smol", 9)


def test_the_table_names_every_setting_as_the_environment_does() -> None:
    table = {row.variable: row for row in rows()}
    assert table["PARLEY_KAFKA__BOOTSTRAP"].default == "127.0.0.1:9092"
    assert table["PARLEY_PROTOCOL__WINDOW"].meaning
    assert all(name.startswith("PARLEY_") for name in table)
