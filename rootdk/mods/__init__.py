"""User score and mask functions as expressions."""
