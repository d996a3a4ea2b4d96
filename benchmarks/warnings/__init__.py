"""How well do alerts warn before numbers are lost, and what does acting at them save? Measured through the service."""
