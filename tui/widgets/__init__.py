"""Widgets of the screen."""
