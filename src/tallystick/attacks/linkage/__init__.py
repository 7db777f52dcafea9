"""Attacks on linking by similar keys: where does the other side's key lie?"""
