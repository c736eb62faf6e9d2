"""What every file of tests here is: functions that are run one after the other against the server whose address is given.

A line is printed for every test and, last, "N passed, N failed"; the process exits 1 if any failed.
"""

import sys
import traceback

TESTS = []


def test(function):
    TESTS.append(function)
    return function


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def main(arguments_for):
    """Runs all tests; `arguments_for(url)` makes what they are called with."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} BASE_URL")
    arguments = arguments_for(sys.argv[1])
    failed = 0
    for function in TESTS:
        try:
            function(*arguments)
            print(f"ok      {function.__name__}")
        except Exception:
            failed += 1
            print(f"FAILED  {function.__name__}")
            traceback.print_exc(file=sys.stdout)
    print(f"{len(TESTS) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
