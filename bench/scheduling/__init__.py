"""What choosing the programs of a step costs. Benchmarks of what runs next belong here, without engines."""
