#!/usr/bin/env python3
"""What scripts/clang_tidy.py makes of a diff and of a build."""

import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import clang_tidy  # noqa: E402


class ClangTidyTest(unittest.TestCase):

    def test_changed_lines(self):
        diff = ('diff --git a/core/a.cc b/core/a.cc\n--- a/core/a.cc\n+++ b/core/a.cc\n'
                '@@ -1 +1,2 @@ int x;\n@@ -9,2 +10 @@\n@@ -20,3 +20,0 @@\n'
                '--- a/docs/a.md\n+++ b/docs/a.md\n@@ -1 +1 @@\n')
        self.assertEqual(clang_tidy.changed_lines(diff), {'core/a.cc': [[1, 2], [10, 10]]})

    def test_commands_lose_the_precompiled_header(self):
        self.assertEqual(
            clang_tidy.without_pch('c++ -Winvalid-pch -include /b/core/cmake_pch.hxx -O3 -c a.cc'),
            'c++ -O3 -c a.cc')

    def test_sources_of_a_unity_source_are_compiled(self):
        with tempfile.TemporaryDirectory() as build:
            build = os.path.realpath(build)
            with open(os.path.join(build, 'unity_0_cxx.cxx'), 'w', encoding='utf-8') as file:
                file.write('#include "/s/b.cc"\n\n#include "/s/c.cc"\n')
            with open(os.path.join(build, 'compile_commands.json'), 'w', encoding='utf-8') as file:
                json.dump([{'directory': build, 'file': path, 'command': 'c++'}
                           for path in ('/s/a.cc', 'unity_0_cxx.cxx', 'gone.cxx')], file)
            known = clang_tidy.write_commands(build, os.path.join(build, 'clang-tidy'))
            self.assertEqual(known, {'/s/a.cc', '/s/b.cc', '/s/c.cc'})
            with open(os.path.join(build, 'clang-tidy', 'compile_commands.json'),
                      encoding='utf-8') as file:
                self.assertEqual([entry['file'] for entry in json.load(file)],
                                 ['/s/a.cc', '/s/b.cc', '/s/c.cc'])


if __name__ == '__main__':
    unittest.main()
