"""The web application: the gate, the endpoints, the pages."""
