"""A comparison as one HTML page that needs no server."""
