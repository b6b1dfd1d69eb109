"""Puts the simulated Kafka, engine, store, clock and randomness in the place of the real ones, for this process."""

from __future__ import annotations

import functools
import random
import secrets
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import yaml
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from inference_workers.engine.client import EngineClient
from parley.safety.classifier import Classifier
from parley.safety.policy import Policy
from parley.settings import Settings
from parley.stores.lazy import LazyMessageStore
from parley.topics import TOPICS_FILE, load_topics
from tests.simulation.clients import SimAdmin, SimConsumer, SimProducer, World
from tests.simulation.cluster import START_S
from tests.simulation.engine import SimEngineClient
from tests.simulation.loop import PROCESS
from tests.simulation.store import SimStore

PARTITIONS = 2
LANES = 2
ENGINES = ("engine-0", "engine-1")


class Clock:
    """The module `time` as a process sees it: its clock may differ from the brokers'."""

    @staticmethod
    def time() -> float:
        process = PROCESS.get()
        return START_S + World.cluster.loop.time() + (process.skew_s if process is not None else 0.0)

    @staticmethod
    def time_ns() -> int:
        return int(Clock.time() * 1e9)

    @staticmethod
    def monotonic() -> float:
        return World.cluster.loop.time()


def install() -> None:
    """Once in a process that does nothing else."""
    # The end of a schedule throws away coroutines of killed processes: their clean-up fails, and concerns nobody.
    sys.unraisablehook = lambda about: None
    warnings.simplefilter("ignore", RuntimeWarning)
    places: dict[Any, Any] = {
        AIOKafkaConsumer: SimConsumer,
        AIOKafkaProducer: SimProducer,
        AIOKafkaAdminClient: SimAdmin,
        EngineClient: SimEngineClient,
        LazyMessageStore: SimStore,
        time: Clock,
    }
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("parley", "consumers", "inference_workers"):
            continue
        for attribute, value in list(vars(module).items()):
            if isinstance(value, type) or value is time:
                instead = places.get(value)
                if instead is not None:
                    setattr(module, attribute, instead)
    Classifier.load = functools.cache(Classifier.load)  # type: ignore[method-assign]
    Policy.load = functools.cache(Policy.load)  # type: ignore[method-assign]
    secrets.token_hex = lambda nbytes=None: random.randbytes(nbytes or 16).hex()
    secrets.token_bytes = lambda nbytes=None: random.randbytes(nbytes or 16)
    secrets.randbits = random.getrandbits


@functools.cache
def base_settings(scratch: Path) -> Settings:
    """Of every process: a small cell with the synthetic pool alone."""
    raw = yaml.safe_load(TOPICS_FILE.read_text())
    raw["session_partitions"] = PARTITIONS
    raw["topics"]["chat.tokens"]["partitions"] = LANES
    raw["pools"] = {"synthetic": raw["pools"]["synthetic"] | {"slots": 3}}
    raw["routing"] = [rule for rule in raw["routing"] if rule["pool"] == "synthetic"]
    path = scratch / "topics.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    settings = Settings(engines={"synthetic": ENGINES})
    settings.__dict__["topics"] = load_topics(path)
    return settings
