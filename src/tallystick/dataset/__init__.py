"""Provide a party's rows at the linked positions: one object per way of linking rows, and the table that names them."""
