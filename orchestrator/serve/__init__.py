"""The service: a fleet's watch with pages, a JSON API, server-sent events, metrics and a health check."""
