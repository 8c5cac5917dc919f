"""Conformance suites: contracts as cases that run against anyone's implementation."""
