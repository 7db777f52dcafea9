"""Serve scores online: long-lived sessions between the parties, and HTTP for clients. ``scoring`` has what crosses between
parties.
"""
