#!/usr/bin/env python3
"""Part 4: boards are what generate.py makes and keep to check.py, and every panel answers in a real
run in which a worker and a server were lost and came back; draw.py draws it.

  dashboards.py [--pictures FOLDER]      (default: a folder that goes with the test)
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

import processes

DASHBOARDS = processes.ROOT / 'dashboards'
BOARDS = ('training', 'servers', 'transports', 'operations')


def run(*command):
    subprocess.run([sys.executable, *map(str, command)], check=True)


def lose(cluster, name):
    """Kills a member in the middle of training; once it is missed another takes its place."""
    series = f'shoal_coordinator_members_lost_total{{role="{name.partition("-")[0]}"}}'

    def lost():
        return cluster.value('coordinator', series)
    before = lost()
    cluster.kill(name)
    processes.wait_for(f'{name} is missed', lambda: (lost() or 0) > before)
    print(f'{name} was killed and missed', flush=True)
    cluster.start_member(name)


def train(cluster, steps):
    """Returns when most of it was over."""
    cluster.train(train={'steps': steps, 'warmup_steps': 5}, checkpoint={'every_steps': steps // 8})
    for name in ('worker-1', 'server-1'):
        cluster.wait_for_steps(steps // 4, 300)
        lose(cluster, name)
    processes.wait_for('the job is nearly done', lambda: cluster.steps() > 0.95 * steps, 600)
    end = time.time()
    cluster.ended()
    return end


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--pictures', type=pathlib.Path)
    parser.add_argument('--steps', type=int, default=120)
    options = parser.parse_args()
    run(DASHBOARDS / 'generate.py', '--check')
    run(DASHBOARDS / 'check.py')
    with tempfile.TemporaryDirectory(prefix='shoal-boards-') as folder:
        pictures = options.pictures or pathlib.Path(folder)
        with processes.Cluster(folder, tls=True) as cluster:
            prometheus = processes.Prometheus(cluster, rules=DASHBOARDS / 'alerts.yaml')
            start = time.time()
            end = train(cluster, options.steps)
            for board in BOARDS:
                run(DASHBOARDS / 'draw.py', DASHBOARDS / f'{board}.json', '--prometheus',
                    prometheus.url, '--start', start, '--end', end, '--scrape', 1,
                    '--output', pictures / f'board-{board}.png')
    print('every panel of four boards answers')


if __name__ == '__main__':
    main()
