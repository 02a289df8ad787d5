#!/usr/bin/env python3
"""What came of the stages of scripts/ci.sh.

  scripts/test_report.py FOLDER [--seconds N] [--slowest N]

FOLDER holds stages.tsv (name, exit status, seconds) and ctest's NAME.xml of stages that ran tests.
Prints the minutes of each stage, the slowest tests, what failed, and last a line "N passed,
N failed, N skipped", where a stage without tests of its own counts as one. Exits with 1 where
anything failed.
"""

import argparse
import csv
import glob
import os
import sys
import xml.etree.ElementTree as ElementTree

SKIPPED = 77


def read_tests(folder):
    """[(stage, test, seconds, 'passed' | 'failed' | 'skipped')]"""
    tests = []
    for path in sorted(glob.glob(os.path.join(folder, '*.xml'))):
        stage = os.path.splitext(os.path.basename(path))[0]
        for case in ElementTree.parse(path).getroot().iter('testcase'):
            status = {'run': 'passed', 'notrun': 'skipped', 'disabled': 'skipped'}.get(
                case.get('status'), 'failed')
            if case.find('skipped') is not None:
                status = 'skipped'
            tests.append((stage, case.get('name'), float(case.get('time') or 0), status))
    return tests


def read_stages(folder):
    """[(stage, exit status, seconds)]"""
    with open(os.path.join(folder, 'stages.tsv'), encoding='utf-8') as file:
        return [(name, int(status), int(seconds))
                for name, status, seconds in csv.reader(file, delimiter='\t')]


def outcomes(stages, tests):
    """{'passed' | 'failed' | 'skipped': [what]}"""
    found = {'passed': [], 'failed': [], 'skipped': []}
    for stage, test, _, status in tests:
        found[status].append(f'{stage}: {test}')
    for stage, status, _ in stages:
        own = [test for test in tests if test[0] == stage]
        failed = status not in (0, SKIPPED)
        # A stage whose tests tell why it failed is not counted once more.
        if failed and not any(test[3] == 'failed' for test in own):
            found['failed'].append(stage)
        elif not own:
            found['skipped' if status == SKIPPED else 'passed'].append(stage)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('folder')
    parser.add_argument('--seconds', type=int, help='of all stages together')
    parser.add_argument('--slowest', type=int, default=20)
    options = parser.parse_args()
    stages = read_stages(options.folder)
    tests = read_tests(options.folder)
    total = options.seconds or sum(seconds for _, _, seconds in stages)
    print(f'\n== the {min(options.slowest, len(tests))} slowest tests, in seconds')
    for stage, test, seconds, _ in sorted(tests, key=lambda test: -test[2])[:options.slowest]:
        print(f'{seconds:8.1f}  {stage}: {test}')
    print('\n== stages, in minutes')
    for stage, status, seconds in stages:
        word = {0: '', SKIPPED: 'skipped'}.get(status, 'FAILED')
        print(f'{seconds / 60:8.1f}  {stage} {word}'.rstrip())
    print(f'{total / 60:8.1f}  all')
    found = outcomes(stages, tests)
    for word in ('skipped', 'failed'):
        for what in found[word]:
            print(f'{word}: {what}')
    print(f"\n{len(found['passed'])} passed, {len(found['failed'])} failed, "
          f"{len(found['skipped'])} skipped")
    return 1 if found['failed'] else 0


if __name__ == '__main__':
    sys.exit(main())
