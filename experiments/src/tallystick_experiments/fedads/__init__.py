"""FedAds' tables."""
