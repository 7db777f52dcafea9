"""A contract tried with one defence and strength after the other beside a simulated partner, before a real one."""
