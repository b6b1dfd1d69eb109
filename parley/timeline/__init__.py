"""`parley log`: everything that the log says of a conversation or a response, in one order."""
