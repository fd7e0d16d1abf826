"""The demo and the benchmark: what the command line runs; nothing here is needed to use the library."""
