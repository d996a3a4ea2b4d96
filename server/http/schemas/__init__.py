"""The requests and responses of the API, as pydantic models."""
