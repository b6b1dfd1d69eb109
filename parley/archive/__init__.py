"""`parley log archive`: topics as files, for longer than brokers keep them; read and replayed as the log itself is."""
