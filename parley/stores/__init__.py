"""The views of the log that people read from: users and sessions in PostgreSQL, turns and messages in ScyllaDB.

Nothing here is needed between a prompt and its tokens. docs/stores.md explains the tables.
"""
