"""The Kafka runtime: producers, group consumers with takeover and gates, readers, the dead-letter queue."""
