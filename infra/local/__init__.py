"""The embedded stack: Kafka, Cassandra, PostgreSQL, Triton and every role on one machine, without containers."""
