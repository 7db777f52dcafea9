"""Try a contract with several defences and strengths against a simulated partner, before a real one."""
