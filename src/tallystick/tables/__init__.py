"""Tables, keys, encoders, splits and batches: everything that touches a party's own rows."""
