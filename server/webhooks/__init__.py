"""Webhooks: which addresses get which events, and the delivery to them."""
