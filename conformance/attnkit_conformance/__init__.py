"""The conformance suite: what the contract promises, as checks that any backend can be held to."""
