"""`parley doctor`: looks at everything that the roles need, changes nothing, and says what to do."""
