"""Adapters that let other libraries compute their attention here; each is imported by those who use it."""
