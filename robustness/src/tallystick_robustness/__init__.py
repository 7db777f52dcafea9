"""Faults: mutated messages, damaged files, killed processes and a bad network, and whether each was withstood.

A campaign is a file: messages.py, files.py, kills.py, network.py. campaign.py runs their cases, in any number and from any
seed; a case is repeated by its number alone.
"""
