"""One module a schema version, oldest first. Never edit one that was released."""
