#!/usr/bin/env python3
"""Part 5: the alerts' unit tests, and each alert that can be provoked for real: it fires, an
alertmanager tells a webhook, and it resolves; none fires that should not. Windows and `for` are
divided by 30.

  alerts.py [SCENE...]      (default: all)
"""

import contextlib
import fcntl
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import processes

DASHBOARDS = processes.ROOT / 'dashboards'
FASTER = 30
NOBODY = 65534
SLOTS, HEAD = 2, 128  # of a connection; bytes before a gradient
SMALLEST_SLOT = 2**19  # doorbells have less
F_GET_SEALS, F_SEAL_FUTURE_WRITE = 1034, 16
VERSION, OTHER_VERSION = b'\x000.1.0\x00', b'\x000.1.1\x00'
SECONDS = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400}


def faster(text):
    """The rules with shorter windows, `for` and limits."""
    def shorter(found):
        return f'{max(1, int(found.group(1)) * SECONDS[found.group(2)] // FASTER)}s'
    text = re.sub(r'(?<=[\[:])(\d+)([smhd])(?=[\]:])', shorter, text)
    text = re.sub(r'(?<=for: )(\d+)([smhd])', shorter, text)
    return re.sub(r'(?<=[,+>] )(?:3600|120|60)\b',
                  lambda found: str(int(found.group()) // FASTER), text)


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

    def expect(self, name, seconds=90, **labels):
        """Waits until the alert has come; returns how to wait until it is resolved."""
        self.expected.add(name)

        def heard(status):
            return any(labels.items() <= found.items()
                       for found in self.alertmanager.seen(name, status))
        processes.wait_for(f'{name} fires', lambda: heard('firing'), seconds)
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
    stop(follower)


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


def fail(cluster, watch):
    fill_disk(cluster, watch, diverge(cluster, watch))


def stop(follower):
    follower.send_signal(signal.SIGTERM)
    if follower.wait(60) != 75:
        raise AssertionError(f'a stopped job ended with {follower.returncode}')


@contextlib.contextmanager
def slow(process):
    """It stands still for nine tenths of the time, as on a host that is ill."""
    over = threading.Event()

    def hold_up():
        while not over.is_set():
            process.send_signal(signal.SIGSTOP)
            over.wait(0.9)
            process.send_signal(signal.SIGCONT)
            over.wait(0.1)
    holding = threading.Thread(target=hold_up)
    holding.start()
    try:
        yield
    finally:
        over.set()
        holding.join()


def slow_worker(cluster, watch):
    """A worker becomes slow: the other waits for it, and checkpoints come late."""
    follower = cluster.submit(
        cluster.make_job('slow', train={'steps': 10000}, service={'accumulate': 'exact'},
                         checkpoint={'every_steps': 25}), 'train-slow')
    cluster.wait_for_steps(110)
    with slow(cluster.running['worker-1']):
        old = watch.expect('ShoalCheckpointOld', shoal_job=processes.JOB)
        straggler = watch.expect('ShoalStraggler', instance='worker-1')
    straggler()
    old()
    stop(follower)


def drop_attempts(cluster, watch):
    """A worker for whom others wait at each layer leaves in the middle of a step, again and
    again."""
    follower = cluster.submit(
        cluster.make_job('drop', train={'steps': 10000, 'synchronization': 'layer'}), 'train-drop')
    for _ in range(6):
        cluster.wait_for_steps(1)
        cluster.kill('worker-1', signal.SIGTERM)
        cluster.start_member('worker-1')
    watch.expect('ShoalAttemptsDropped', shoal_job=processes.JOB)()
    stop(follower)


def other_user(cluster, watch):
    """A worker of another user, whom servers give no shared memory."""
    if os.getuid() != 0:
        print('ShoalTransportFallback: not provoked, which takes root to be somebody else')
        return
    cluster.kill('worker-1', signal.SIGTERM)
    cluster.start_member('worker-1', user=NOBODY)
    follower = cluster.submit(
        cluster.make_job('other', train={'steps': 10000},
                         service={'transports': ['shm', 'tcp']}), 'train-other')
    fallback = watch.expect('ShoalTransportFallback', instance='worker-1')
    stop(follower)
    cluster.kill('worker-1', signal.SIGTERM)
    cluster.start_member('worker-1')
    fallback()


def damage_slots(process):
    """Writes over the gradients in the memory that a server lets workers write their pushes to, not
    over the heads before them."""
    for path in pathlib.Path(f'/proc/{process.pid}/fd').iterdir():
        with contextlib.suppress(FileNotFoundError):  # files that it has closed meanwhile
            if not os.readlink(path).startswith('/memfd:shoal'):
                continue
            with open(path, 'r+b', buffering=0) as memory:
                stride = os.fstat(memory.fileno()).st_size // SLOTS
                if stride < SMALLEST_SLOT or \
                        fcntl.fcntl(memory, F_GET_SEALS) & F_SEAL_FUTURE_WRITE:
                    continue
                for slot in range(SLOTS):
                    memory.seek(slot * stride + HEAD)
                    memory.write(bytes([0xa5]) * (stride - HEAD))


def damage_pushes(cluster, watch):
    follower = cluster.submit(
        cluster.make_job('damage', train={'steps': 10000},
                         service={'transports': ['shm'], 'verify_pushes': True,
                                  'push_slots': SLOTS}), 'train-damage')
    cluster.wait_for_steps(5)

    def damaged():
        damage_slots(cluster.running['server-0'])
        return cluster.value('server-0', 'shoal_ps_malformed_pushes_total')
    processes.wait_for('a push is hit on its way', damaged, pause=0)
    resolved = watch.expect('ShoalMalformedPushes', instance='server-0')
    cluster.wait_for_steps(5)
    resolved()
    stop(follower)


def skew(cluster, watch):
    """The coordinator alone is of another version."""
    program = cluster.folder / 'shoal-coordinator'
    program.write_bytes((processes.PROGRAMS / 'shoal-coordinator').read_bytes()
                        .replace(VERSION, OTHER_VERSION))
    program.chmod(0o755)
    cluster.kill('coordinator', signal.SIGTERM)
    cluster.start_coordinator(program)
    resolved = watch.expect('ShoalVersionSkew', 200, shoal_job=processes.JOB)
    cluster.kill('coordinator', signal.SIGTERM)
    cluster.start_coordinator()
    resolved()


SCENES = (stall, lose_members, fail, slow_worker, drop_attempts, other_user, damage_pushes, skew)


def main():
    scenes = processes.chosen(SCENES, sys.argv[1:])
    promtool = processes.DEBIAN / 'usr/bin/promtool'
    for command in (['check', 'rules', 'alerts.yaml'], ['test', 'rules', 'alerts_test.yaml']):
        subprocess.run([promtool, *command], check=True, cwd=DASHBOARDS)
    with tempfile.TemporaryDirectory(prefix='shoal-alerts-') as folder:
        with processes.Cluster(folder, lease=3) as cluster:
            watch = Watch(cluster)
            for scene in scenes:
                scene(cluster, watch)
            watch.quiet('after the end')
    return 0


if __name__ == '__main__':
    sys.exit(main())
