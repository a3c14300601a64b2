"""Recording: the attention calls of a run, with their results, in a package that replays on any machine."""

from attnkit_conformance.recording.recorder import Tape, record

__all__ = ["Tape", "record"]
