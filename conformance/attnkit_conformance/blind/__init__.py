"""Blind validation: the suite's own checks put as questions in a folder, and judged by the answers, without Python."""

from attnkit_conformance.blind.issuing import issue
from attnkit_conformance.blind.judging import Judgement, judge

__all__ = ["Judgement", "issue", "judge"]
