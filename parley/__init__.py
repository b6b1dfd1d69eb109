"""What Parley's roles share: ids, topics, the Kafka runtime, the pure machines of the protocol, stores, settings."""

__version__ = "0.1.0"
