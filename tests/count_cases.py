#!/usr/bin/env python3
"""Counts GoogleTest cases over all the programs of one run of ctest.

usage: count_cases.py RESULTS_FOLDER

Reads ctest.junit, which ctest wrote, and the *.xml that the GoogleTest programs wrote beside it. A
program that wrote none (a script, or one that crashed or ran out of time) counts as one case.
Prints `N passed, N failed` (and `, N skipped`) last; exits 1 if any failed or none ran.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree


def count_program(path):
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.get("status") == "notrun":
            continue
        if case.find("failure") is not None:
            failed += 1
        elif case.get("result") == "skipped":
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main(folder):
    passed = failed = skipped = 0
    failed_programs = set()
    for path in sorted(folder.glob("*.xml")):
        counts = count_program(path)
        passed, failed, skipped = (a + b for a, b in zip((passed, failed, skipped), counts))
        # base_check_test.xml, base_check_test_1.xml: the program, and its second run.
        if counts[1]:
            failed_programs.add(re.sub(r"_\d+$", "", path.stem))
    programs = {re.sub(r"_\d+$", "", path.stem) for path in folder.glob("*.xml")}

    entries = list(ElementTree.parse(folder / "ctest.junit").getroot().iter("testcase"))
    for entry in entries:
        program = entry.get("name").replace(".", "_", 1)
        status = entry.get("status")
        if status == "fail" and program not in failed_programs:
            failed += 1
        elif status == "run" and program not in programs:
            passed += 1
        elif status not in ("fail", "run"):
            skipped += 1
    print(f"{len(entries)} test programs")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
