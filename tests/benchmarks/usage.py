"""Run the command given as arguments and print its wall time, CPU time and peak memory as JSON.

A script of its own, without imports that weigh: until it has started, a child counts the memory of the
process it was started from as its own.
"""

import json
import os
import subprocess
import sys
import time

if __name__ == "__main__":
    begin = time.perf_counter()
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, resources = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - begin
    code = os.waitstatus_to_exitcode(status)
    cpu = resources.ru_utime + resources.ru_stime
    # Kilobytes on Linux, bytes on macOS: good for ratios only.
    print(json.dumps({"code": code, "seconds": seconds, "cpu": cpu, "peak": resources.ru_maxrss}))
