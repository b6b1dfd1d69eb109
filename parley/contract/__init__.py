"""What the log promises those who read and write it: compatible schemas, a document of all topics, ACLs."""
