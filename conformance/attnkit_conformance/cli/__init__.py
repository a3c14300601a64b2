"""``attnkit conform ...``: one file per command, put together in ``app``; importing this imports none of them."""
