"""Array libraries in front of the engine."""
