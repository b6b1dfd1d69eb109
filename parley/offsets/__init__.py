"""`parley group reset`: a group's committed offsets, moved by an operator."""
