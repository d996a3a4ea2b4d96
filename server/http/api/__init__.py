"""The endpoints under /api, one file per resource."""
