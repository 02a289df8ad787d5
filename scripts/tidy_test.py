#!/usr/bin/env python3
"""Plants a finding of each rule of scripts/tidy.py, and beside it what must pass."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tidy  # noqa: E402


def found(rule, tree):
    """[(path, line)] of the rule's findings."""
    return [(finding.path, finding.line) for finding in tidy.RULES[rule](tree)]


class TidyTest(unittest.TestCase):

    def test_width_counts_columns_of_code_alone(self):
        wide = 'int x;\n// ' + 'é' * 98 + '\n'
        self.assertEqual(found('width', {'core/a.cc': wide}), [('core/a.cc', 2)])
        self.assertEqual(found('width', {'core/a.cc': '// ' + 'é' * 97}), [])
        self.assertEqual(found('width', {'docs/a.md': wide, 'x.json': wide}), [])
        self.assertEqual(found('width', {'a.sh': '# https://' + 'a' * 100}), [])

    def test_width_reaches_every_kind_of_code(self):
        for path in 'a.h a.cu a.py a.sh a.proto a.cmake core/CMakeLists.txt'.split():
            self.assertEqual(found('width', {path: '#' * 101}), [(path, 1)])

    def test_length(self):
        self.assertEqual(found('length', {'a.cc': '\n' * 501}), [('a.cc', 501)])
        self.assertEqual(found('length', {'a.cc': '\n' * 500, 'a.md': '\n' * 501}), [])

    def test_folder_counts_its_own_files_of_code(self):
        files = {f'core/{i}.cc': '' for i in range(46)}
        self.assertEqual(found('folder', files), [('core', 0)])
        files.pop('core/0.cc')
        files.update({'core/base/a.cc': '', 'core/CMakeLists.txt': '', 'core/a.json': ''})
        self.assertEqual(found('folder', files), [])

    def test_path_in_a_comment(self):
        tree = {'core/job/job.h': '', 'core/job/keys.cc': '// see plan/job.h\nint x;  // job/no.h'}
        self.assertEqual(found('path', tree), [('core/job/keys.cc', 1), ('core/job/keys.cc', 2)])

    def test_path_without_its_folder(self):
        tree = {'core/a.h': '', 'client/b.cc': '// gone.h', 'client/c.cc': '// a.h and nccl.h'}
        self.assertEqual(found('path', tree), [('client/b.cc', 1)])

    def test_path_from_the_root_or_from_a_folder_around_the_file(self):
        tree = {'worker/ops/cpu/gemm.cc': '// ops/cpu/gemm.cc, cpu/gemm.cc, worker/ops/cpu',
                'core/a.sh': '# scripts/a.sh $x/a.sh build/a.sh'}
        self.assertEqual(found('path', tree), [('core/a.sh', 1)])

    def test_path_is_not_looked_for_in_code(self):
        tree = {'a.cc': 'auto x = "no/such.h"; int y = a/b;\n#include <no/such.h>\n'}
        self.assertEqual(found('path', tree), [])

    def test_path_in_a_page(self):
        page = 'no/such.h is not code, `no/such.h` is\n```\nno/such.h\n```\n`no/where` `plan/`\n'
        self.assertEqual(found('path', {'docs/a.md': page}),
                         [('docs/a.md', 1), ('docs/a.md', 5), ('docs/a.md', 5)])

    def test_links_of_a_page(self):
        tree = {'docs/a.md': '[a](b.md) [b](b.md#two-words) [c](#here)\n## Here\n',
                'docs/b.md': '# Two words\n'}
        self.assertEqual(found('path', tree), [])
        tree['docs/a.md'] = '[a](c.md)\n[b](b.md#none)\n[c](https://c.md)'
        self.assertEqual(found('path', tree), [('docs/a.md', 1), ('docs/a.md', 2)])

    def test_cycle(self):
        tree = {'core/a/x.h': '#include "core/b/y.h"\n', 'core/b/y.h': '',
                'core/b/z.cc': '\n#include "core/a/x.h"\n'}
        self.assertEqual(found('cycle', tree), [('core/a/x.h', 1)])

    def test_family(self):
        row = 'const Family kQwen3 = {.model_type = "qwen3", .architecture = "Qwen3ForCausalLM"};'
        tree = {'core/model/families/qwen3.cc': row, 'worker/model/block.cc': 'int x;  // of Qwen3',
                'server/a.cc': 'if (spec.family == "qwen3") {', 'worker/model/a_test.cc': '"qwen3"',
                'worker/b.cc': '// as Qwen3ForCausalLM has it',
                'core/data/a.cc': '// Qwen3 has its own', 'client/a.cc': 'int qwen30;'}
        self.assertEqual(found('family', tree), [('worker/model/block.cc', 1), ('server/a.cc', 1),
                                                 ('worker/b.cc', 1)])

    def test_clock(self):
        text = ('// absl::Now() in a comment\nauto a = absl::Now();\nm.AwaitWithTimeout(c, t);\n'
                'c.WaitWithDeadline(&m, t);\nabsl::CondVar c;\nClock::Now();\nRealClock().Now();\n')
        self.assertEqual(found('clock', {'worker/a.cc': text}),
                         [('worker/a.cc', line) for line in (2, 3, 4, 5)])
        for path in ('core/base/clock.cc', 'bench/a.cc', 'worker/a_test.cc', 'worker/testing/a.h'):
            self.assertEqual(found('clock', {path: text}), [])

    def test_cycle_of_a_folder_and_the_one_it_lies_in(self):
        tree = {'core/x.h': '#include "core/b/y.h"\n', 'core/b/y.h': '#include "core/x.h"\n'}
        self.assertEqual(found('cycle', tree), [('core/x.h', 1)])

    def test_cycle_leaves_tests_out(self):
        for path in 'core/b/z_test.cc core/b/testing/z.h tests/z.cc core/b/z_bench.cc'.split():
            tree = {'core/a/x.h': '#include "core/b/y.h"\n#include "tests/y.h"\n',
                    'core/b/y.h': '', 'tests/y.h': '', path: '#include "core/a/x.h"\n'}
            self.assertEqual(found('cycle', tree), [], path)

    def test_metric_is_in_sources_and_on_its_page(self):
        tree = {'server/a.cc': '\nNew("shoal_a_total");\nNew("shoal_b");\n',
                'server/a_test.cc': '"shoal_c"', tidy.METRICS: '`shoal_b{role}`\n`shoal_d`\n'}
        self.assertEqual(found('metric', tree), [('server/a.cc', 2), (tidy.METRICS, 2)])
        tree[tidy.METRICS] = '`shoal_a_total`, `shoal_b{role}`'
        self.assertEqual(found('metric', tree), [])

    def test_vocabulary_matches_whole_identifiers(self):
        words = '# a comment\n\nglorp_\tattempt_\n\\w*Door\tXService\n'
        tree = {tidy.VOCABULARY: words,
                'core/a.cc': 'int glorp_;\nint glorp_of;\nStageDoor door;\n', 'docs/a.md': 'Door\n'}
        self.assertEqual(found('vocabulary', tree),
                         [('core/a.cc', 1), ('core/a.cc', 3), ('docs/a.md', 1)])

    def test_vocabulary_of_several_words(self):
        tree = {tidy.VOCABULARY: 'for ever\tforever\n', 'a.cc': '// stays for ever\n// for every\n'}
        self.assertEqual(found('vocabulary', tree), [('a.cc', 1)])

    def test_vocabulary_keeps_to_its_paths(self):
        tree = {'core/a.cc': 'lane', 'core/gpu/a.cu': 'lane', 'bench/results/a.md': 'lane'}
        tree[tidy.VOCABULARY] = 'lane\tLink\tcore/gpu/*\n'
        self.assertEqual(found('vocabulary', tree), [('core/gpu/a.cu', 1)])
        tree[tidy.VOCABULARY] = 'lane\tLink\t!core/gpu/*\n'
        self.assertEqual(found('vocabulary', tree), [('core/a.cc', 1)])

    def test_vocabulary_refuses_a_line_without_tabs(self):
        with self.assertRaisesRegex(ValueError, 'vocabulary.txt:1'):
            tidy.parse_vocabulary('glorp_ attempt_')

    def test_program_reads_what_git_would_track_and_fails_with_findings(self):
        with tempfile.TemporaryDirectory() as root:
            subprocess.run(['git', 'init', '-q', root], check=True)
            for path, text in (('.gitignore', 'build/\n'), ('a.cc', ''), ('build/b.cc', '#' * 101)):
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), 'w', encoding='utf-8') as file:
                    file.write(text)
            run = [sys.executable, tidy.__file__, '--root', root]
            self.assertEqual(subprocess.run(run, capture_output=True, check=False).returncode, 0)
            with open(os.path.join(root, 'a.cc'), 'w', encoding='utf-8') as file:
                file.write('x' * 101)
            failed = subprocess.run(run, capture_output=True, check=False, text=True)
            self.assertEqual(failed.returncode, 1)
            self.assertTrue(re.match(r'a\.cc:1: width: 101 columns', failed.stdout), failed.stdout)


if __name__ == '__main__':
    unittest.main()
