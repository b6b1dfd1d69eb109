"""What SREs watch: how far each group is behind, told from the log and the groups' coordinators alone."""
