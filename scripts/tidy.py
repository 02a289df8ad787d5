#!/usr/bin/env python3
"""The tidy test: what must hold of every file of the repository, checked in seconds.

  scripts/tidy.py [--root FOLDER] [--only RULE[,RULE...]]

  width       no line of code over 100 columns
  length      no file of code over 500 lines
  folder      no folder with more than 45 files of code
  path        no path in a comment or a page that does not exist, no dead link
  cycle       no two folders of production code that include each other
  clock       no wait or deadline of production code by the wall's clock, which jumps
  family      no model family named where none may be known: below core/model, in server, client,
              worker and what they stand on
  metric      no metric that docs/metrics.md lacks, and none there that no source has
  vocabulary  no word of scripts/vocabulary.txt, which says what to use instead

Prints one line a finding, "path:line: rule: message", and exits with 1 if there is one.
scripts/tidy_test.py plants a finding of each rule.
"""

import argparse
import collections
import fnmatch
import os
import posixpath
import re
import subprocess
import sys

MAX_COLUMNS = 100
MAX_LINES = 500
MAX_FILES = 45

CXX = ('.h', '.cc', '.cu', '.cuh')
CODE = CXX + ('.proto', '.py', '.sh', '.cmake', 'CMakeLists.txt')
# Measured, dated and never edited by hand.
RECORDS = ('bench/results/',)
VOCABULARY = 'scripts/vocabulary.txt'
METRICS = 'docs/metrics.md'
FAMILIES = 'core/model/families/'
FAMILY_FREE = ('client/', 'core/model/huggingface/', 'core/plan/', 'core/sim/', 'core/transport/',
               'server/', 'worker/')

# What is not of this repository: headers of libraries, and what builds and programs write.
OUTSIDE = re.compile(
    r'^(?:absl|arpa|asm|bin|bits|boost|build|bundle|cuda|fmt|google|grpc|grpcpp|infiniband|lib|'
    r'linux|logs|net|netinet|nlohmann|oneapi|parts|prometheus|rdma|share|spdlog|sys|tokens|'
    r'yaml-cpp|[A-Z]+)/|^(?:nccl\.h|\w\.\w+|_\w+\.\w+)$')

Finding = collections.namedtuple('Finding', 'path line rule message')


def is_code(path):
    return path.endswith(CODE)


def is_page(path):
    return path.endswith('.md')


def is_test(path):
    """Tests, fuzz targets, benchmarks and what they stand on."""
    parts = path.split('/')
    name = parts[-1]
    return (parts[0] == 'tests' or 'testing' in parts or name.startswith('fake_') or
            re.search(r'_(test|fuzz|bench)\.\w+$', name) is not None)


def read_tree(root):
    """The text of every file that git tracks or would track, by path."""
    listed = subprocess.run(['git', '-C', root, 'ls-files', '-coz', '--exclude-standard'],
                            check=True, capture_output=True).stdout.decode().split('\0')
    tree = {}
    for path in filter(None, listed):
        full = os.path.join(root, path)
        if not os.path.isfile(full):
            continue  # deleted, not yet committed
        readable = is_code(path) or is_page(path) or path == VOCABULARY
        tree[path] = ''
        if readable:
            with open(full, encoding='utf-8', errors='replace') as file:
                tree[path] = file.read()
    return tree


def line_of(text, offset):
    return text.count('\n', 0, offset) + 1


def check_width(tree):
    for path, text in tree.items():
        if not is_code(path):
            continue
        for number, line in enumerate(text.split('\n'), 1):
            if len(line) > MAX_COLUMNS and '://' not in line:
                yield Finding(path, number, 'width', f'{len(line)} columns, at most {MAX_COLUMNS}')


def check_length(tree):
    for path, text in tree.items():
        lines = text.count('\n')
        if is_code(path) and lines > MAX_LINES:
            yield Finding(path, lines, 'length', f'{lines} lines, at most {MAX_LINES}')


def check_folder(tree):
    files = collections.Counter(posixpath.dirname(path) for path in tree
                                if is_code(path) and not path.endswith('CMakeLists.txt'))
    for folder, count in sorted(files.items()):
        if count > MAX_FILES:
            yield Finding(folder, 0, 'folder', f'{count} files of code, at most {MAX_FILES}')


# A file of a kind that only this repository has, with or without its folder; folders within others;
# and, in pages alone, one folder with its slash.
AHEAD, BEHIND = r'(?<![\w./$<>{}*~-])', r'(?![\w/*{(<>$-]|\.\w)'
FILE_TOKEN = re.compile(
    AHEAD + r'((?:[\w.-]+/)*\w+\.(?:h|cc|cu|cuh|proto|py|sh|cmake|md))' + BEHIND)
FOLDERS_TOKEN = re.compile(AHEAD + r'([a-z_0-9]+(?:/[a-z_0-9]+)+)/?' + BEHIND)
FOLDER_TOKEN = re.compile(AHEAD + r'([a-z_0-9]+)/' + BEHIND)
LINK = re.compile(r'\]\(([^)\s]+)\)')
COMMENT = {'.py': '#', '.sh': '#', '.cmake': '#', 'CMakeLists.txt': '#'}


def comments_of(path, text):
    """(line number, text of its comment)"""
    mark = next((mark for end, mark in COMMENT.items() if path.endswith(end)), '//')
    found = re.compile(r'(?:^|\s)' + mark + r'(.*)')
    for number, line in enumerate(text.split('\n'), 1):
        comment = found.search(line) if mark in line else None
        if comment:
            yield number, comment.group(1)


def spoken_of(path, text):
    """(line number, text in which paths are looked for)"""
    if not is_page(path):
        yield from comments_of(path, text)
        return
    fenced = False
    for number, line in enumerate(text.split('\n'), 1):
        if line.lstrip().startswith('```'):
            fenced = not fenced
        elif not fenced:
            yield number, ' '.join(re.findall(r'`([^`]+)`', line))


def slug(heading):
    """The anchor that a heading of a page gets."""
    text = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', heading).strip().lower()
    return re.sub(r'[^\w\- ]', '', text).replace(' ', '-')


def folders_of(tree):
    folders = set()
    for path in tree:
        while path := posixpath.dirname(path):
            folders.add(path)
    return folders


def check_path(tree):
    known = set(tree) | folders_of(tree)
    names = {posixpath.basename(path) for path in known}

    def exists(token, path):
        """From the root or a folder that the file lies in; a name alone, anywhere."""
        base = posixpath.dirname(path)
        while '/' in token:
            if posixpath.normpath(posixpath.join(base, token)) in known:
                return True
            if not base:
                return False
            base = posixpath.dirname(base)
        return token in names

    for path, text in tree.items():
        if not (is_code(path) or is_page(path)) or path.startswith(RECORDS):
            continue
        for number, spoken in spoken_of(path, text):
            tokens = FILE_TOKEN.findall(spoken) + FOLDERS_TOKEN.findall(spoken)
            tokens += FOLDER_TOKEN.findall(spoken) if is_page(path) else []
            for token in tokens:
                if not (exists(token, path) or OUTSIDE.match(token) or OUTSIDE.match(token + '/')):
                    yield Finding(path, number, 'path', f'{token} does not exist')
        if is_page(path):
            yield from dead_links(tree, known, path, text)


def dead_links(tree, known, path, text):
    for found in LINK.finditer(re.sub(r'`[^`\n]*`', lambda code: ' ' * len(code.group()), text)):
        target, _, anchor = found.group(1).partition('#')
        if '://' in target or target.startswith('mailto:'):
            continue
        line = line_of(text, found.start())
        folder = posixpath.dirname(path)
        page = posixpath.normpath(posixpath.join(folder, target)) if target else path
        if page not in known:
            yield Finding(path, line, 'path', f'link to {target}, which does not exist')
        elif anchor and is_page(page):
            headings = re.findall(r'^#+ (.*)$', tree[page], re.MULTILINE)
            if anchor not in map(slug, headings):
                yield Finding(path, line, 'path', f'link to #{anchor}, no heading of {page}')


INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def check_cycle(tree):
    """Folders are the leaves: a folder and the one that it lies in are two."""
    edges = {}  # (from, to) -> (file, line, included)
    for path, text in tree.items():
        if not path.endswith(CXX) or is_test(path):
            continue
        folder = posixpath.dirname(path)
        for found in INCLUDE.finditer(text):
            included = found.group(1)
            to = posixpath.dirname(included)
            if included in tree and to != folder:
                edges.setdefault((folder, to), (path, line_of(text, found.start()), included))
    for (folder, to), (path, line, included) in sorted(edges.items()):
        if folder < to and (to, folder) in edges:
            back, back_line, back_included = edges[to, folder]
            yield Finding(path, line, 'cycle',
                          f'{folder} and {to} include each other: {included} here, '
                          f'{back_included} at {back}:{back_line}')


# What of Abseil looks at the wall's clock or waits by it, and what to use.
WALL_CLOCK = {
    r'absl::Now\(\)': 'RealClock().Now(), or WallTime() for people (core/base/clock.h)',
    r'\bAwaitWith(?:Timeout|Deadline)\b':
        'AwaitFor or AwaitUntil (core/base/threads/steady_await.h)',
    r'\bWaitWith(?:Timeout|Deadline)\b|absl::CondVar\b':
        'SteadyCondition (core/base/threads/steady_condition.h)',
}
MAY_USE_WALL_CLOCK = ('bench/', 'core/base/clock.cc')


def check_clock(tree):
    for path, text in tree.items():
        if not path.endswith(CXX) or is_test(path) or path.startswith(MAY_USE_WALL_CLOCK):
            continue
        for number, line in enumerate(text.split('\n'), 1):
            code = line.partition('//')[0]
            for pattern, use in WALL_CLOCK.items():
                for word in re.findall(pattern, code):
                    yield Finding(path, number, 'clock', f"'{word}': {use}")


def check_family(tree):
    """Families are a table (core/model/families), whose readers know none by name."""
    listed = re.compile(r'\.(?:model_type|architecture) = "(\w+)"')
    names = {name for path, text in tree.items() if path.startswith(FAMILIES)
             for name in listed.findall(text)}
    for path, text in tree.items():
        if not names or not path.startswith(FAMILY_FREE) or is_test(path):
            continue
        for found in re.finditer(rf'(?i)\b(?:{"|".join(sorted(names))})\b', text):
            yield Finding(path, line_of(text, found.start()), 'family',
                          f'names {found.group()}; core/model/family.h has traits')


def check_metric(tree):
    named = {}  # metric -> (path, line) of its first name in a source
    for path, text in sorted(tree.items()):
        if path.endswith(CXX) and not is_test(path):
            for found in re.finditer(r'"(shoal_[a-z0-9_]+)"', text):
                named.setdefault(found.group(1), (path, line_of(text, found.start())))
    page = tree.get(METRICS, '')
    documented = {}
    for found in re.finditer(r'\bshoal_[a-z0-9_]+', page):
        documented.setdefault(found.group(), line_of(page, found.start()))
    for name in sorted(set(named) - set(documented)):
        yield Finding(*named[name], 'metric', f'{name} is not in {METRICS}')
    for name in sorted(set(documented) - set(named)):
        yield Finding(METRICS, documented[name], 'metric', f'no source has {name}')


def parse_vocabulary(text):
    """[(regex, what to use, glob)]: see the head of scripts/vocabulary.txt."""
    entries = []
    for number, line in enumerate(text.split('\n'), 1):
        if not line.strip() or line.startswith('#'):
            continue
        fields = line.split('\t')
        if len(fields) not in (2, 3):
            raise ValueError(f'{VOCABULARY}:{number}: expected two or three fields, tabs between')
        entries.append((re.compile(rf'\b(?:{fields[0]})\b'), fields[1], (fields + [''])[2]))
    return entries


def in_scope(path, glob):
    if glob.startswith('!'):
        return not fnmatch.fnmatchcase(path, glob[1:])
    return not glob or fnmatch.fnmatchcase(path, glob)


def check_vocabulary(tree):
    entries = parse_vocabulary(tree.get(VOCABULARY, ''))
    places = collections.defaultdict(list)  # of each word: the files that have it
    for path, text in tree.items():
        if (is_code(path) or is_page(path)) and not path.startswith(RECORDS):
            for word in set(re.findall(r'\w+', text)):
                places[word].append(path)
    for pattern, use, glob in entries:
        if re.search(r'[^\w\\+*?|()\[\]^$.-]', pattern.pattern[5:-3]):  # of several words
            paths = {path for files in places.values() for path in files}
        else:
            paths = {path for word, files in places.items() if pattern.fullmatch(word)
                     for path in files}
        for path in sorted(paths):
            if not in_scope(path, glob):
                continue
            for number, line in enumerate(tree[path].split('\n'), 1):
                for word in pattern.findall(line):
                    yield Finding(path, number, 'vocabulary', f"'{word}': {use}")


RULES = {'width': check_width, 'length': check_length, 'folder': check_folder, 'path': check_path,
         'cycle': check_cycle, 'clock': check_clock, 'family': check_family,
         'metric': check_metric, 'vocabulary': check_vocabulary}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--root', default=os.path.join(os.path.dirname(__file__), '..'))
    parser.add_argument('--only', default=','.join(RULES), help='rules, with commas between')
    options = parser.parse_args()
    tree = read_tree(options.root)
    findings = 0
    for rule in options.only.split(','):
        for finding in RULES[rule](tree):
            findings += 1
            print(f'{finding.path}:{finding.line}: {finding.rule}: {finding.message}')
    print(f'tidy: {findings} findings in {len(tree)} files', file=sys.stderr)
    return 1 if findings else 0


if __name__ == '__main__':
    sys.exit(main())
