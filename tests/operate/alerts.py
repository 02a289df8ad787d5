#!/usr/bin/env python3
"""Part 5: the alerts' unit tests, and each alert that can be provoked for real: it fires, an
alertmanager tells a webhook, and it resolves; none fires that should not. Windows and `for` are
divided by 30.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile

import processes

DASHBOARDS = processes.ROOT / 'dashboards'
FASTER = 30
SECONDS = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400}


def faster(text):
    """The rules with shorter windows, `for` and limits."""
    def shorter(found):
        return f'{max(1, int(found.group(1)) * SECONDS[found.group(2)] // FASTER)}s'
    text = re.sub(r'(?<=[\[:])(\d+)([smhd])(?=[\]:])', shorter, text)
    text = re.sub(r'(?<=for: )(\d+)([smhd])', shorter, text)
    return re.sub(r'(?<=[,+] )120\b', str(120 // FASTER), text)


class Watch:
    """What the webhook heard, and what it should not have heard."""

    def __init__(self, cluster):
        self.alertmanager = processes.Alertmanager(cluster)
        rules = cluster.folder / 'alerts.yaml'
        rules.write_text(faster((DASHBOARDS / 'alerts.yaml').read_text(encoding='utf-8')),
                         encoding='utf-8')
        self.prometheus = processes.Prometheus(cluster, rules=rules,
                                               alertmanager=self.alertmanager.address)
        self.expected = set()

    def expect(self, name, **labels):
        """Waits until the alert has come; returns how to wait until it is resolved."""
        self.expected.add(name)

        def heard(status):
            return any(labels.items() <= found.items()
                       for found in self.alertmanager.seen(name, status))
        processes.wait_for(f'{name} fires', lambda: heard('firing'), 90)
        print(f'{name}: fired', flush=True)

        def resolved():
            processes.wait_for(f'{name} resolves', lambda: heard('resolved'), 90)
            print(f'{name}: resolved', flush=True)
        return resolved

    def quiet(self, when):
        """Nothing else than what was provoked has come."""
        heard = {name for name, status, _ in list(self.alertmanager.received) if status == 'firing'}
        surprises = heard - self.expected
        if surprises:
            raise AssertionError(f'{when}: {sorted(surprises)} fired')
        print(f'{when}: nothing else fired', flush=True)


def stall(cluster, watch):
    """A server stands still, for less than its lease."""
    cluster.lease = 60
    job = cluster.make_job('stall', train={'steps': 10000})
    follower = cluster.submit(job, 'train-stall')
    cluster.wait_for_steps(5)
    watch.quiet('before and after the first step')
    cluster.kill('server-0', signal.SIGSTOP)
    resolved = watch.expect('ShoalStepStalled', shoal_job=processes.JOB)
    cluster.kill('server-0', signal.SIGCONT)
    resolved()
    follower.send_signal(signal.SIGTERM)
    if follower.wait(60) != 75:
        raise AssertionError(f'a stopped job ended with {follower.returncode}')


def lose_members(cluster, watch):
    """A worker is killed, and later the coordinator."""
    cluster.lease = 3
    follower = cluster.submit(cluster.make_job('lose', train={'steps': 10000}), 'train-lose')
    cluster.wait_for_steps(5)
    cluster.kill('worker-1')
    down = watch.expect('ShoalTargetDown', instance='worker-1')
    lost = watch.expect('ShoalMemberLost', role='worker')
    cluster.start_member('worker-1')
    cluster.wait_for_steps(5)
    down()
    lost()
    watch.quiet('during a resume')
    follower.send_signal(signal.SIGTERM)
    follower.wait(60)
    cluster.kill('coordinator')
    gone = watch.expect('ShoalCoordinatorGone')
    cluster.start_coordinator()
    gone()


def diverge(cluster, watch):
    job = cluster.make_job('diverge', train={'steps': 50, 'learning_rate': 1e30, 'warmup_steps': 0})
    follower = cluster.submit(job, 'train-diverge')
    resolved = watch.expect('ShoalNonFinite', shoal_job=processes.JOB)
    failed = watch.expect('ShoalJobFailed', shoal_job=processes.JOB)
    if follower.wait(60) != 76:
        raise AssertionError(f'a job that diverged ended with {follower.returncode}')
    resolved()
    return failed


@contextlib.contextmanager
def small_disk(path, size):
    path.mkdir()
    subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', path], check=True)
    try:
        yield
    finally:
        subprocess.run(['umount', '--lazy', path], check=True)


def fill_disk(cluster, watch, job_failed):
    """The disk of checkpoints is full for as long as one of them fails. `job_failed` is to be over
    once this job has its turn."""
    if os.getuid() != 0:
        print('ShoalCheckpointFailing and ShoalCheckpointDiskFilling: not provoked, which takes '
              'root to mount a small disk')
        return
    disk = cluster.folder / 'disk'
    with small_disk(disk, '256m'):
        job = cluster.make_job('full', train={'steps': 10000},
                               checkpoint={'directory': 'disk/checkpoints', 'every_steps': 10})
        follower = cluster.submit(job, 'train-full')
        cluster.wait_for_steps(12)
        job_failed()
        with open(disk / 'filler', 'wb') as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(2**20))
        no_room = watch.expect('ShoalCheckpointDiskFilling', shoal_job=processes.JOB)
        failing = watch.expect('ShoalCheckpointFailing', shoal_job=processes.JOB)
        follower.send_signal(signal.SIGTERM)
        follower.wait(60)  # with 75, or 1 where it was told after too many checkpoints failed
        (disk / 'filler').unlink()
        job = cluster.make_job('room', train={'steps': 10}, checkpoint={'directory': 'disk/room'})
        if cluster.submit(job, 'train-room').wait(60) != 0:
            raise AssertionError('the next job found no room either')
        no_room()
        failing()


def main():
    promtool = processes.DEBIAN / 'usr/bin/promtool'
    for command in (['check', 'rules', 'alerts.yaml'], ['test', 'rules', 'alerts_test.yaml']):
        subprocess.run([promtool, *command], check=True, cwd=DASHBOARDS)
    with tempfile.TemporaryDirectory(prefix='shoal-alerts-') as folder:
        with processes.Cluster(folder, lease=3) as cluster:
            watch = Watch(cluster)
            stall(cluster, watch)
            lose_members(cluster, watch)
            fill_disk(cluster, watch, diverge(cluster, watch))
            watch.quiet('after the end')
    return 0


if __name__ == '__main__':
    sys.exit(main())
