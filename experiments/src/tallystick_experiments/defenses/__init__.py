"""Provide defences that no seed paper has and that protect little or nothing here. The entry point
tallystick.defenses adds them.
"""
