"""What FlexAttention is told of a call: who sees whom, and what is added to the scores."""
