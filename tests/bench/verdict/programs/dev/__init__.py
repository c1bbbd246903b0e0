"""The half to develop on."""
