"""Replay: the reader, the classifier and the playbook over what was recorded, without a container."""
