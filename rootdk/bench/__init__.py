"""Measures rootdk beside its peers: the harness behind `rootdk bench` and the scripts of benchmarks/."""
