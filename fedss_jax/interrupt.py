"""SIGTERM and Ctrl-C: taken note of, so that a run ends where it can go on from."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interruption:
    """While it lasts, the first signal is only noted; a second one ends the process at once."""

    def __init__(self) -> None:
        self.signal = 0  # that came
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # no other may
            before = {number: signal.getsignal(number) for number in SIGNALS}
            # Who starts a run with a signal ignored, as nohup does, means it.
            self._before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}
            for number in self._before:
                signal.signal(number, self._note)
        return self

    def __exit__(self, *reason: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)
        # Not by print, which may be at work right now.
        os.write(2, b"\nstopping: the round under way is finished and saved; a second signal ends at once\n")

    def came(self) -> bool:
        return self.signal != 0

    @property
    def exit_code(self) -> int:
        """As shells have it. Where several processes stop, not all were told to themselves."""
        return 128 + (self.signal or signal.SIGTERM)
