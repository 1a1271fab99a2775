"""Runs a command and tells how much other programs disturbed it.

A training step with two threads on a two-core machine slows down several times when a compiler runs beside it, and two
programs do not suffer alike: what spins waits for a core that the compiler holds. So each run is started in a quiet moment, is
judged afterwards by the processor time that others used while it ran, and is repeated if that was too much.
"""
import os
import resource
import subprocess
import time

TICK = 1 / os.sysconf("SC_CLK_TCK")
BUSY_FIELDS = (0, 1, 2, 5, 6, 7)  # of /proc/stat: user, nice, system, irq, softirq, stolen by other virtual machines


def busy_seconds():
    """Processor time used on the whole machine since it started."""
    with open("/proc/stat") as file:
        fields = file.readline().split()[1:]
    return sum(int(fields[index]) for index in BUSY_FIELDS) * TICK


def own_seconds():
    """Processor time used by this process and by all children that have ended."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def wait_for_quiet(limit, patience):
    """Returns when others used less than `limit` cores during a second, or after `patience` seconds."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        before = busy_seconds() - own_seconds()
        time.sleep(1)
        if busy_seconds() - own_seconds() - before < limit:
            return


def run(command, limit=0.08, tries=4, patience=60, before=lambda: None, **keywords):
    """Runs `command` until it was left alone, at most `tries` times.

    Returns the subprocess result of the least disturbed try, and the cores that others used during it (0 = none). Stops at
    once when the command fails. `before` is called before each try; `keywords` go to subprocess.run.
    """
    best = None
    for _ in range(tries):
        wait_for_quiet(limit, patience)
        before()
        busy, own, clock = busy_seconds(), own_seconds(), time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, **keywords)
        others = (busy_seconds() - busy - (own_seconds() - own)) / (time.monotonic() - clock)
        others = round(max(others, 0.0), 3)
        if best is None or others < best[1]:
            best = done, others
        if done.returncode or others < limit:
            return (done, others) if done.returncode else best
    return best
