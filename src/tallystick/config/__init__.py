"""Parse, validate, hash and compare the shared contract and the private party file."""
