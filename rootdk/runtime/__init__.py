"""Runs machine code; knows nothing of attention."""
