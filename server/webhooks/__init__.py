"""Addresses that are told about events, and the deliveries to them."""
