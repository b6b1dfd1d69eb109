"""`parley chat`: conversations in a terminal."""
