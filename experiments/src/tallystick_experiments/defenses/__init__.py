"""Defences of no seed paper that protect little or nothing here: they are installed by the entry point tallystick.defenses."""
