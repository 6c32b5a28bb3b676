"""The way to what is reached over HTTP: one small client for everybody, and what Kubernetes' API server adds to it."""
