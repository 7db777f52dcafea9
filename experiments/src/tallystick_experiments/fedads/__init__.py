"""Make FedAds' tables."""
