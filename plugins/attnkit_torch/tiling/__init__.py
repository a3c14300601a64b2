"""The tiled path, forward and backward: tiles of a schedule, the maths of one, torch's fused kernel where it may."""
