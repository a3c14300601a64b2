"""The backend under test and the only doors to it, in this process or in one of its own."""
