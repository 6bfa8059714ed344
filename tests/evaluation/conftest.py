"""What of this room is collected."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("mauve") else ["quality/test_mauve.py"]  # mauve-text is heavy, and no part of [dev]
