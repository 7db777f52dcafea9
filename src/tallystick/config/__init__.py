"""The shared contract and the private party file: parsing, validation, hash and diff."""
