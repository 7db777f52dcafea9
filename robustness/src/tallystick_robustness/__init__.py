"""Faults: mutated messages, damaged files, killed processes, a bad network and silent partners, and whether each was withstood.

A campaign is a file: messages.py, files.py, kills.py, network.py, waits.py. campaign.py runs their cases, in any number and from
any seed; a case is repeated by its number alone.
"""
