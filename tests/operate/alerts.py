#!/usr/bin/env python3
"""Part 5: the alerts' unit tests, and each alert that can be provoked for real: it fires, an
alertmanager tells a webhook, and it resolves; none fires that should not. Windows and `for` are
divided by 30.

  alerts.py [--short | SCENE...]      (default: all)

    --short   scenes that come in seconds. Of what else fires, lateness is told alone: two minutes
              are four seconds here, and a machine that does other things may be as late as that
"""

import contextlib
import fcntl
import json
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
import tls

DASHBOARDS = processes.ROOT / 'dashboards'
SHAPE = processes.ROOT / 'examples/quickstart-model.json'
FASTER = 30
ENDLESS = {'steps': 100000}
NOBODY = 65534
SLOTS, HEAD = 2, 128  # of a connection; bytes before a gradient
SMALLEST_SLOT = 2**19  # doorbells have less
F_GET_SEALS, F_SEAL_FUTURE_WRITE = 1034, 16
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

    def __init__(self, cluster, tolerated=frozenset()):
        self.tolerated = tolerated
        self.alertmanager = processes.Alertmanager(cluster)
        rules = cluster.folder / 'alerts.yaml'
        rules.write_text(faster((DASHBOARDS / 'alerts.yaml').read_text(encoding='utf-8')),
                         encoding='utf-8')
        self.prometheus = processes.Prometheus(cluster, rules=rules,
                                               alertmanager=self.alertmanager.address)
        self.expected, self.begin = set(), 0

    def next_scene(self):
        """What came until now is no answer to what is expected next."""
        self.begin = len(self.alertmanager.received)

    def expect(self, name, seconds=300, **labels):
        """Waits until the alert has come; returns how to wait until it is resolved."""
        self.expected.add(name)

        def heard():
            return [status for found, status, about in self.alertmanager.received[self.begin:]
                    if found == name and labels.items() <= about.items()]
        processes.wait_for(f'{name} fires', lambda: 'firing' in heard(), seconds)
        print(f'{name}: fired', flush=True)

        def resolved():
            processes.wait_for(f'{name} resolves', lambda: heard()[-1] == 'resolved', seconds)
            print(f'{name}: resolved', flush=True)
        return resolved

    def quiet(self, when):
        """Nothing else than what was provoked has come."""
        heard = {name for name, status, _ in list(self.alertmanager.received) if status == 'firing'}
        surprises = heard - self.expected
        if surprises - self.tolerated:
            raise AssertionError(f'{when}: {sorted(surprises)} fired')
        print(f'{when}: {sorted(surprises) or "nothing"} else fired', flush=True)


@contextlib.contextmanager
def meanwhile(action):
    """It is done again and again."""
    over = threading.Event()

    def repeat():
        while not over.is_set():
            action()
    repeating = threading.Thread(target=repeat)
    repeating.start()
    try:
        yield
    finally:
        over.set()
        repeating.join()


def slow(process):
    """It stands still for nine tenths of the time, as on a host that is ill."""
    def hold_up():
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.9)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.1)
    return meanwhile(hold_up)


def stall(cluster, watch):
    """A server stands still, for less than its lease."""
    cluster.train('stall', train=ENDLESS, cluster={'lease_seconds': 60})
    cluster.wait_for_steps(5)
    watch.quiet('before and after the first step')
    cluster.kill('server-0', signal.SIGSTOP)
    stalled = watch.expect('ShoalStepStalled', shoal_job=processes.JOB)
    silent = watch.expect('ShoalTargetDown',
                          summary=f'server server-0 of {processes.JOB} does not answer')
    cluster.kill('server-0', signal.SIGCONT)
    stalled()
    silent()
    cluster.stop('stall')


def lose_members(cluster, watch):
    """A worker is killed, and later the coordinator."""
    cluster.train('lose', train=ENDLESS)
    cluster.wait_for_steps(5)
    cluster.kill('worker-1')
    down = watch.expect('ShoalTargetDown', instance='worker-1')
    lost = watch.expect('ShoalMemberLost', role='worker')
    cluster.start_member('worker-1')
    cluster.wait_for_steps(5)
    down()
    lost()
    watch.quiet('during a resume')
    cluster.stop('lose')
    cluster.kill('coordinator')
    gone = watch.expect('ShoalCoordinatorGone')
    cluster.start_coordinator()
    gone()


def diverge(cluster, watch):
    cluster.train('diverge', train={'steps': 50, 'learning_rate': 1e30, 'warmup_steps': 0})
    resolved = watch.expect('ShoalNonFinite', shoal_job=processes.JOB)
    failed = watch.expect('ShoalJobFailed', shoal_job=processes.JOB)
    cluster.ended('diverge', 76)
    resolved()
    return failed


def mount_disk(path, size):
    """Whether a disk of that size is there now."""
    path.mkdir()
    return subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', path],
                          check=False).returncode == 0


@contextlib.contextmanager
def unmounted(path):
    try:
        yield
    finally:
        subprocess.run(['umount', '--lazy', path], check=True)


def fill_disk(cluster, watch, job_failed):
    """The disk of checkpoints is full for as long as one of them fails. `job_failed` is to be over
    once this job has its turn."""
    disk = cluster.folder / 'disk'
    if not mount_disk(disk, '256m'):
        print('ShoalCheckpointFailing and ShoalCheckpointDiskFilling: not provoked, no small disk '
              'can be mounted here')
        return
    with unmounted(disk):
        cluster.train('full', train=ENDLESS,
                      checkpoint={'directory': 'disk/checkpoints', 'every_steps': 10})
        cluster.wait_for_steps(12)
        job_failed()
        with open(disk / 'filler', 'wb') as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(2**20))
        no_room = watch.expect('ShoalCheckpointDiskFilling', shoal_job=processes.JOB)
        failing = watch.expect('ShoalCheckpointFailing', shoal_job=processes.JOB)
        full = cluster.running['train-full']
        full.send_signal(signal.SIGTERM)
        full.wait(120)  # with 75, or 1 where it was told after too many checkpoints failed
        (disk / 'filler').unlink()
        cluster.train('room', train={'steps': 10}, checkpoint={'directory': 'disk/room'})
        cluster.ended('room')
        no_room()
        failing()


def fail(cluster, watch):
    fill_disk(cluster, watch, diverge(cluster, watch))


def slow_worker(cluster, watch):
    """A worker becomes slow: the other waits for it, and checkpoints come late."""
    cluster.train('slow', train=ENDLESS, service={'accumulate': 'exact'},
                  checkpoint={'every_steps': 60})
    cluster.wait_for_steps(130)
    with slow(cluster.running['worker-1']):
        old = watch.expect('ShoalCheckpointOld', shoal_job=processes.JOB)
        straggler = watch.expect('ShoalStraggler', instance='worker-1')
    straggler()
    old()
    cluster.stop('slow')


def slow_server(cluster, watch):
    """A server becomes slow, which the plans of the hour before did not foresee."""
    cluster.train('idle', train=ENDLESS, checkpoint={'every_steps': 0, 'every_seconds': 5})
    cluster.wait_for_steps(5)
    time.sleep(3600 / FASTER)  # before that nothing is said of a job
    with slow(cluster.running['server-0']):
        idle = watch.expect('ShoalIdleAbovePlan', shoal_job=processes.JOB)
    idle()
    cluster.stop('idle')


def uneven_shards(cluster, watch):
    """Most of a model is its embeddings, which are not cut into partitions."""
    shape = json.loads(SHAPE.read_text(encoding='utf-8'))
    shape.update(vocab_size=8192, num_hidden_layers=1)
    path = cluster.folder / 'wide.json'
    path.write_text(json.dumps(shape), encoding='utf-8')
    processes.make_model(cluster.folder, path, 'wide')
    cluster.train('uneven', model='wide', train=ENDLESS, service={'partition_bytes': '64MiB'})
    uneven = watch.expect('ShoalShardImbalance', shoal_job=processes.JOB)
    cluster.stop('uneven')
    uneven()


def lose_replicas(cluster, watch):
    """One of two servers is killed: the other goes on, and nobody backs it up."""
    cluster.train('replicas', train=ENDLESS, service={'replicas': 2})
    cluster.wait_for_steps(5)
    watch.expected |= {'ShoalTargetDown', 'ShoalMemberLost'}
    cluster.kill('server-1')
    missing = watch.expect('ShoalUnderreplicated', shoal_job=processes.JOB)
    cluster.wait_for_steps(5)
    cluster.start_member('server-1')
    missing()
    cluster.stop('replicas')


def drop_attempts(cluster, watch):
    """A worker for whom others wait at each layer leaves in the middle of a step, again and
    again."""
    cluster.train('drop', train={**ENDLESS, 'synchronization': 'layer'})
    for _ in range(6):
        cluster.wait_for_steps(1)
        cluster.kill('worker-1', signal.SIGTERM)
        cluster.start_member('worker-1')
    watch.expected.add('ShoalStraggler')  # who works meanwhile, next to one that hardly begins
    watch.expect('ShoalAttemptsDropped', shoal_job=processes.JOB)()
    cluster.stop('drop')


def other_user(cluster, watch):
    """A worker of another user, whom servers give no shared memory."""
    if os.getuid() != 0:
        print('ShoalTransportFallback: not provoked, which takes root to be somebody else')
        return
    cluster.kill('worker-1', signal.SIGTERM)
    cluster.start_member('worker-1', user=NOBODY)
    cluster.train('other', train=ENDLESS, service={'transports': ['shm', 'tcp']})
    fallback = watch.expect('ShoalTransportFallback', instance='worker-1')
    cluster.stop('other')
    cluster.kill('worker-1', signal.SIGTERM)
    cluster.start_member('worker-1')
    fallback()


def old_certificates(cluster, watch):
    """All certificates end within a day, until others of the same CA take their place."""
    certificates = tls.Certificates(cluster)
    first = certificates.current
    for name, days in (('ending', 1), ('renewed', 90)):
        own = certificates.make(f'{name}-of-{first.name}', '--ca', first, '--days', days)
        certificates.put(name, own, [first])
        if name == 'ending':
            ending = [watch.expect('ShoalCertificateEnding', instance=each, kind='identity')
                      for each in cluster.ports]
    for resolved in ending:
        resolved()


def wrong_token(cluster, watch):
    """Somebody asks again and again with another token."""
    other = cluster.folder / 'other-token'
    other.touch(mode=0o600)
    other.write_text(os.urandom(24).hex(), encoding='utf-8')

    def ask():
        subprocess.run([str(word) for word in (
            processes.PROGRAMS / 'shoal', 'status', '--coordinator', cluster.address,
            '--token-file', other, '--tls', cluster.certificates)], check=False, timeout=120,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)
    with meanwhile(ask):
        refused = watch.expect('ShoalRefusedCalls', instance='coordinator', reason='token')
    refused()


def little_memory(cluster, watch):
    """The coordinator's machine has less memory than it holds."""
    cluster.kill('coordinator', signal.SIGTERM)
    cluster.start_coordinator(env={**os.environ, 'SHOAL_HOST_MEMORY': '16MiB'})
    near = watch.expect('ShoalMemoryNearLimit', instance='coordinator')
    cluster.kill('coordinator', signal.SIGTERM)
    cluster.start_coordinator()
    near()


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
    cluster.train('damage', train=ENDLESS, service={
        'transports': ['shm'], 'verify_pushes': True, 'push_slots': SLOTS})
    cluster.wait_for_steps(5)

    def damaged():
        damage_slots(cluster.running['server-0'])
        return cluster.value('server-0', 'shoal_ps_malformed_pushes_total')
    processes.wait_for('a push is hit on its way', damaged, pause=0)
    resolved = watch.expect('ShoalMalformedPushes', instance='server-0')
    cluster.wait_for_steps(5)
    resolved()
    cluster.stop('damage')


def skew(cluster, watch):
    """The coordinator alone is of another version: members are refused, and started again."""
    version = cluster.shoal('--version').split()[1].encode()
    program = cluster.folder / 'shoal-coordinator'
    program.write_bytes((processes.PROGRAMS / 'shoal-coordinator').read_bytes()
                        .replace(b'\0' + version + b'\0', b'\0' + version[:-1] + b'x\0'))
    program.chmod(0o755)
    cluster.kill('coordinator', signal.SIGTERM)
    cluster.start_coordinator(program)

    def start_again():
        for name in cluster.members:
            if cluster.running[name].poll() is not None:
                cluster.start_member(name)
        time.sleep(0.1)
    watch.expected.add('ShoalTargetDown')  # of who ends again and again
    with meanwhile(start_again):
        resolved = watch.expect('ShoalVersionSkew', shoal_job=processes.JOB)
        cluster.kill('coordinator', signal.SIGTERM)
        cluster.start_coordinator()
        resolved()


SCENES = (stall, lose_members, lose_replicas, fail, slow_worker, slow_server, uneven_shards,
          drop_attempts, other_user, old_certificates, wrong_token, little_memory, damage_pushes,
          skew)
SHORT = (stall, lose_members, lose_replicas, fail, old_certificates, wrong_token, little_memory)
LATENESS = {'ShoalStepStalled', 'ShoalTargetDown', 'ShoalMemberLost', 'ShoalStraggler',
            'ShoalIdleAbovePlan', 'ShoalCheckpointOld'}


def main():
    short = sys.argv[1:] == ['--short']
    scenes = SHORT if short else processes.chosen(SCENES, sys.argv[1:])
    promtool = processes.DEBIAN / 'usr/bin/promtool'
    for command in (['check', 'rules', 'alerts.yaml'], ['test', 'rules', 'alerts_test.yaml']):
        subprocess.run([promtool, *command], check=True, cwd=DASHBOARDS)
    with tempfile.TemporaryDirectory(prefix='shoal-alerts-') as folder:
        with processes.Cluster(folder, tls=True) as cluster:
            watch = Watch(cluster, LATENESS if short else frozenset())
            for scene in scenes:
                watch.next_scene()
                scene(cluster, watch)
            watch.quiet('after the end')
    return 0


if __name__ == '__main__':
    sys.exit(main())
