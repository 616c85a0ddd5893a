"""Tests of torchtpu; README.md lists them."""
