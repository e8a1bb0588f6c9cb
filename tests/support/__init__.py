"""What tests and benchmarks need beside the product: runtimes, machines, pods, brute force, a clock."""
