"""Adapters for training frameworks. Each module needs its framework, and imports it when it is imported itself."""
