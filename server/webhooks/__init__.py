"""Webhooks: registered addresses, and the delivery of events to them."""
