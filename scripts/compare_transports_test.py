#!/usr/bin/env python3
"""Runs scripts/compare-transports.sh over programs that print what the real ones would."""

import os
import subprocess
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'compare-transports.sh')

SHOAL = r'''
while [ $# -gt 0 ]; do
  case $1 in --transports) t=$2 ;; --sizes) s=$2 ;; esac
  shift
done
for operation in get push; do
  echo "{\"transport\":\"$t\",\"operation\":\"$operation\",\"bytes\":$s,\"clients\":1,\
\"bytes_per_second\":4e9,\"latency_seconds\":2e-05,\"cpu_seconds_per_gb\":0.1,\
\"limit_bytes_per_second\":8e9,\"limit_latency_seconds\":1e-06}"
done
'''
# A server that a client has to wait for; its port is the word after -p, a client ends with a host.
SERVER = r'''
mark="$0.$(printf '%s\n' "$*" | sed 's/.*-p \([0-9]*\).*/\1/')"
case "$*" in
  *" 127.0.0.1") [ -e "$mark" ] || exit 1 ;;
  *) sleep 0.15; touch "$mark"; sleep 5; exit ;;
esac
'''
UCX = SERVER + r'''
echo "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr"
echo "5000,10.000,12,12,1907.3486328125,3000,4,5"
'''
READ_BANDWIDTH = SERVER + r'''
echo " GID: 00:00:00:00"
echo " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
echo " 1048576    1000             181.50             180.25               0.000180"
'''
WRITE_BANDWIDTH = SERVER + r'''
echo " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
echo " 64         1000             1.31               1.25               0.020480"
'''
LATENCY = SERVER + r'''
echo " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    99%"
echo " 64      1000          20.10	         120.00       23.40            24.00            5.00"
'''
MPIRUN = r'''
while [ "$1" != NPopenmpi ] && [ "$1" != osu_get_bw ] && [ "$1" != osu_get_latency ]; do shift; done
exec "$@"
'''
NETPIPE = r'''echo "Now starting the main loop"; echo "  $2 12207.03125 0.00001" >"$8"'''
OSU = r'''echo "# Size  Value"; echo "${2%:*}        16.00"'''


class CompareTransportsTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.program('shoal', SHOAL)

    def tearDown(self):
        self.folder.cleanup()

    def program(self, name, script):
        path = os.path.join(self.folder.name, name)
        with open(path, 'w', encoding='utf-8') as file:
            file.write('#!/bin/bash\n' + script)
        os.chmod(path, 0o755)

    def compare(self, *arguments):
        tools = 'awk basename bash cat dirname mktemp numfmt rm sed sleep sort tail timeout touch'
        for name in tools.split():
            target = os.path.join(self.folder.name, name)
            if not os.path.exists(target):
                os.symlink(f'/usr/bin/{name}', target)
        return subprocess.run(
            [SCRIPT, '--runs', '1', '--shoal', os.path.join(self.folder.name, 'shoal'), *arguments],
            env={'PATH': self.folder.name, 'TMPDIR': self.folder.name},
            capture_output=True, text=True, timeout=60, check=False)

    def rows(self, outcome):
        """{(transport, operation, bytes, system): [its GB/s, its us, ratio, ratio]}"""
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        rows = {}
        for line in outcome.stdout.splitlines()[1:-1]:
            words = line.replace('|', ' ').split()
            self.assertEqual(words[3:6], ['shoal', '4.000', '20.00'])
            rows[(*words[:3], words[6])] = words[7:]
        return rows

    def test_ucx_and_netpipe(self):
        self.program('ucx_perftest', UCX)
        self.program('mpirun', MPIRUN)
        self.program('NPopenmpi', NETPIPE)
        self.assertEqual(self.rows(self.compare('--transports', 'shm,tcp', '--sizes', '64K')), {
            ('shm', 'get', '65536', 'ucx'): ['2.000', '10.00', '2.00', '2.00'],
            ('shm', 'get', '65536', 'openmpi'): ['1.600', '20.00', '2.50', '1.00'],
            ('tcp', 'get', '65536', 'ucx'): ['2.000', '10.00', '2.00', '2.00'],
            ('tcp', 'get', '65536', 'openmpi'): ['1.600', '20.00', '2.50', '1.00'],
        })

    def test_osu_where_it_is_there(self):
        self.program('ucx_perftest', UCX)
        self.program('mpirun', MPIRUN)
        self.program('osu_get_bw', OSU)
        self.program('osu_get_latency', OSU)
        rows = self.rows(self.compare('--transports', 'shm', '--sizes', '1M'))
        self.assertEqual(rows['shm', 'get', '1048576', 'openmpi'],
                         ['0.016', '16.00', '250.00', '1.25'])

    def test_perftest_tables(self):
        self.program('ib_read_bw', READ_BANDWIDTH)
        self.program('ib_write_bw', WRITE_BANDWIDTH)
        self.program('ib_read_lat', LATENCY)
        self.program('ib_write_lat', LATENCY)
        rows = self.rows(
            self.compare('--transports', 'verbs', '--sizes', '1M', '--device', 'rxe0'))
        self.assertEqual(rows, {
            ('verbs', 'get', '1048576', 'perftest'): ['0.189', '23.40', '21.16', '0.85'],
            # By the rate; and there and back.
            ('verbs', 'push', '1048576', 'perftest'): ['0.001', '46.80', '3051.76', '0.43'],
        })

    def test_what_is_missing_is_named_once(self):
        outcome = self.compare('--transports', 'shm,tcp', '--sizes', '64K,1M')
        self.assertEqual(outcome.returncode, 0)
        self.assertEqual(outcome.stderr.splitlines(), [
            'left out: ucx_perftest is not there (apt-get install ucx-utils)',
            'left out: mpirun is not there (apt-get install openmpi-bin)'])

    def test_a_program_that_fails_says_why(self):
        self.program('ucx_perftest', 'echo no device; exit 1\n')
        outcome = self.compare('--transports', 'shm', '--sizes', '64K')
        self.assertNotEqual(outcome.returncode, 0)
        self.assertIn('no device', outcome.stderr)


if __name__ == '__main__':
    unittest.main()
