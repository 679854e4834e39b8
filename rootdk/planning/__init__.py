"""How a call runs, as values: decides, never emits."""
