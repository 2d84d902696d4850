"""The first signal asks, the second one insists, and afterwards everything is as it was."""

import os
import signal
import threading

import pytest

from statewise.interrupts import Interrupted, ask_before_stopping


def test_the_first_signal_asks_and_the_second_ends_at_once():
    asked = []
    with ask_before_stopping(lambda name: asked.append(name) is None):
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked == [signal.SIGTERM]
        with pytest.raises(Interrupted) as end:
            os.kill(os.getpid(), signal.SIGINT)
    assert end.value.exit_code == 130
    assert asked == [signal.SIGTERM]


def test_a_run_that_cannot_stop_by_itself_ends_at_the_first_signal():
    with pytest.raises(Interrupted, match="interrupted by SIGTERM") as end, ask_before_stopping(lambda name: False):
        os.kill(os.getpid(), signal.SIGTERM)
    assert end.value.exit_code == 143


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with ask_before_stopping(lambda name: True):
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_outside_the_main_thread_signals_keep_their_meaning():
    before = signal.getsignal(signal.SIGINT)
    inside = []

    def work():
        with ask_before_stopping(lambda name: True):
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before]
