"""Test a job against faults: mutated messages, damaged files, killed processes, a bad network and silent partners.

A campaign is a file: messages.py, files.py, folders.py, kills.py, network.py, waits.py. campaign.py runs any number of their
cases from any seed. The number of a case is enough to repeat it.
"""
