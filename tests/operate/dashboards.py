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
    """Kills a member in the middle of training; another takes its place."""
    lost = cluster.value('coordinator', 'shoal_coordinator_members_lost_total'
                         f'{{role="{name.partition("-")[0]}"}}')
    cluster.kill(name)
    time.sleep(2 * cluster.lease)
    now = cluster.value('coordinator', 'shoal_coordinator_members_lost_total'
                        f'{{role="{name.partition("-")[0]}"}}')
    print(f'{name} was killed; members lost: {lost:.0f}, then {now:.0f}')
    cluster.start_member(name)


def train(cluster, steps):
    """Returns when most of it was over."""
    job = cluster.make_job(train={'steps': steps, 'warmup_steps': 5},
                           checkpoint={'every_steps': steps // 8})
    follower = cluster.submit(job)
    for name in ('worker-1', 'server-1'):
        cluster.wait_for_steps(steps // 4, 300)
        lose(cluster, name)
    processes.wait_for('the job is nearly done', lambda: cluster.steps() > 0.95 * steps, 600)
    end = time.time()
    if follower.wait(600) != 0:
        sys.exit(f'the job ended with {follower.returncode}:\n{cluster.log("train")[-2000:]}')
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
