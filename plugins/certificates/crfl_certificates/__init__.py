"""Certificates that come with crfl."""
