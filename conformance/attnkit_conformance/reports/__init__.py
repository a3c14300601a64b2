"""Reports: what came of a run, written so that people read it, tools take it in, and anyone can check it."""
