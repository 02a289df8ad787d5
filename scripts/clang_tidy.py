#!/usr/bin/env python3
"""clang-tidy on the lines that changed since a commit.

  scripts/clang_tidy.py --base COMMIT [--build FOLDER] [--most N]

Takes the build's compile_commands.json without what only GCC reads: precompiled headers, and unity
sources, whose command each source that they include gets. Sees a changed header through the source
of its name. Skips sources that the build does not compile, and says how many. Exits with 1 if
clang-tidy finds something, and with 77 and the reason if it cannot look.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys

SOURCES = ('.cc',)
HEADERS = ('.h',)


def changed_lines(diff):
    """{path: [[first, last]]} of the lines that a diff without context adds."""
    lines = collections.defaultdict(list)
    path = ''
    for line in diff.split('\n'):
        if line.startswith('+++ '):
            path = line[6:] if line.startswith('+++ b/') else ''
        hunk = re.match(r'@@ -\S+ \+(\d+)(?:,(\d+))? @@', line)
        if hunk and path.endswith(SOURCES + HEADERS):
            first, count = int(hunk.group(1)), int(hunk.group(2) or 1)
            if count > 0:
                lines[path].append([first, first + count - 1])
    return dict(lines)


def without_pch(command):
    """A compile command without the precompiled header."""
    command = re.sub(r' -include \S*cmake_pch\.hxx', '', command)
    return re.sub(r' -(?:Winvalid-pch|fpch-preprocess)\b', '', command)


def compiled(entry):
    """The sources a compile command is for: its file, or those its unity source includes."""
    path = os.path.join(entry['directory'], entry['file'])
    if path.endswith(SOURCES):
        return {os.path.realpath(path)}
    if not os.path.exists(path):
        return set()
    with open(path, encoding='utf-8', errors='replace') as file:
        included = re.findall(r'^#include "(.+)"', file.read(), re.MULTILINE)
    return {os.path.realpath(os.path.join(os.path.dirname(path), name)) for name in included}


def write_commands(build, folder):
    """Writes the commands for clang-tidy; returns the real paths of all sources compiled."""
    with open(os.path.join(build, 'compile_commands.json'), encoding='utf-8') as file:
        commands = json.load(file)
    kept = [{**entry, 'file': source,
             'command': without_pch(entry['command']).replace(entry['file'], source)}
            for entry in commands for source in sorted(compiled(entry))]
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, 'compile_commands.json'), 'w', encoding='utf-8') as file:
        json.dump(kept, file)
    return set().union(*map(compiled, commands))


def skip(reason):
    print(f'clang-tidy: skipped: {reason}', file=sys.stderr)
    return 77


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--base', required=True)
    parser.add_argument('--build', default='build/release')
    parser.add_argument('--most', type=int, default=24, help='files to look at; others are named')
    options = parser.parse_args()
    tool = shutil.which('clang-tidy-14') or shutil.which('clang-tidy')
    if tool is None:
        return skip('there is no clang-tidy (scripts/install-dependencies.sh --tests installs it)')
    if not os.path.exists(os.path.join(options.build, 'compile_commands.json')):
        return skip(f'there is no {options.build}/compile_commands.json (cmake --preset release)')
    diff = subprocess.run(['git', 'diff', '-U0', '-M', '--diff-filter=AMR', options.base],
                          check=True, capture_output=True).stdout.decode(errors='replace')
    lines = changed_lines(diff)
    through = {path if path.endswith(SOURCES) else os.path.splitext(path)[0] + '.cc'
               for path in lines}
    sources = sorted(path for path in through if os.path.exists(path))
    commands = os.path.join(options.build, 'clang-tidy')
    known = write_commands(options.build, commands)
    without = [path for path in sources if os.path.realpath(path) not in known]
    if without:
        print(f'clang-tidy: skipped {len(without)} sources that {options.build} does not compile',
              file=sys.stderr)
    sources = [path for path in sources if path not in without]
    for path in sources[options.most:]:
        print(f'clang-tidy: left out by --most {options.most}: {path}', file=sys.stderr)
    sources = sources[:options.most]
    wanted = json.dumps([{'name': path, 'lines': ranges} for path, ranges in lines.items()])

    def look(path):
        return subprocess.run(
            [tool, '-p', commands, '--quiet', f'--line-filter={wanted}',
             '--extra-arg=-Wno-unknown-warning-option', path],
            capture_output=True, check=False, text=True)

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, result in zip(sources, pool.map(look, sources)):
            if result.returncode != 0:
                failed += 1
                print(result.stdout or result.stderr, end='')
    print(f'clang-tidy: {failed} of {len(sources)} sources with findings', file=sys.stderr)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
