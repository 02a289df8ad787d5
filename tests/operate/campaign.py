#!/usr/bin/env python3
"""Faults on a real cluster while jobs train in exact mode: processes are killed, stopped and cut
off from the network, servers are drained, their number changes, workers come and go, and some of it
at the same time. Each job ends with the weights of an undisturbed one, to the bit, and in time; in
the end nothing is left behind. Who ends is started again, as an orchestrator does.

Runs in a network of its own (scripts/campaign.sh).
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import processes

SERVERS, WORKERS = 4, 3
GUEST = f'worker-{WORKERS}'  # that joins and leaves again
FIRST_GROUP = 50000  # each process has a group of its own, by which the network knows its packets
STEPS = 240
FAULTS_A_JOB = 5
LEASE = 2
WEIGHTS = {'kill': 150, 'stop': 100, 'cut': 80, 'drain': 60, 'scale': 60, 'join': 30, 'both': 20}
ROLES = {'server': 5, 'worker': 3, 'coordinator': 2}
SECONDS_A_FAULT = 30  # that a job may take longer for each
CUTS = {'no packet of it arrives': ['DROP'],
        'its connections are reset': ['REJECT', '--reject-with', 'tcp-reset']}
JOB = {'train': {'steps': STEPS, 'warmup_steps': 2, 'minibatch_samples': 6, 'compute': 'fp32'},
       'data': {'microbatch_tokens': 512},
       'service': {'accumulate': 'exact', 'partition_bytes': '16KiB'},
       'checkpoint': {'every_steps': 10, 'export_huggingface': False},
       'queue': {'max_restarts': 100}}


def fail(what):
    sys.exit(f'campaign: {what}')


@dataclasses.dataclass
class Fault:
    """What happened to whom, and what it cost."""
    kind: str
    what: str
    job: str
    step: int  # the newest committed one when it came
    began: float
    seconds: float | None = None  # until a step was committed that had not been before
    again: int = 0  # steps that were done once more
    said: list = dataclasses.field(default_factory=list)  # by commands that were refused

    def __str__(self):
        cost = 'the job ended' if self.seconds is None else f'{self.seconds:.2f} s to a new step'
        again = f', {self.again} steps again' if self.again else ''
        said = f' ({"; ".join(self.said)})' if self.said else ''
        return f'{self.job} step {self.step}: {self.what}: {cost}{again}{said}'


class Steps:
    """Those that `shoal train --json` tells, as they come."""

    def __init__(self, path):
        self.path, self.read = path, 0
        self.newest = self.highest = 0

    def update(self):
        """Yields the steps that are told since, and whether each is a new one."""
        with open(self.path, 'rb') as log:
            log.seek(self.read)
            lines = log.read().split(b'\n')
        for line in lines[:-1]:
            self.read += len(line) + 1
            event = {}
            if line.startswith(b'{'):
                with contextlib.suppress(json.JSONDecodeError):
                    event = json.loads(line)
            if event.get('event') == 'step':
                self.newest = event['step']
                yield self.newest > self.highest
                self.highest = max(self.highest, self.newest)


class Campaign(processes.Cluster):
    """A cluster, what is to happen to it later, and who is started again."""

    def __init__(self, folder, seed):
        super().__init__(folder, SERVERS, WORKERS, lease=LEASE)
        self.random = random.Random(seed)
        self.groups = {name: FIRST_GROUP + i for i, name in enumerate([*self.ports, GUEST])}
        self.later = []  # (when, what is called then)
        self.asked = []  # (command under way, the fault that it belongs to)
        self.away = set()  # who is not to be there now
        self.ends = collections.Counter()  # (role, exit code) of those that ended by themselves

    def __enter__(self):
        super().__enter__()
        self.ports[GUEST] = processes.free_port()
        return self

    def start(self, name, command, **how):
        if name in self.groups:
            how = {'group': self.groups[name], 'extra_groups': [], **how}
        return super().start(name, command, **how)

    def start_again(self, name):
        self.away.discard(name)
        if name == 'coordinator':
            self.start_coordinator(wait=False)  # it may be cut off
        else:
            self.start_member(name)

    def after(self, seconds, call):
        self.later.append((time.monotonic() + seconds, call))

    def pump(self, all_of_it=False):
        """Does what is due, and starts again who has ended."""
        now = time.monotonic()
        due = [entry for entry in self.later if all_of_it or entry[0] <= now]
        self.later = [entry for entry in self.later if entry not in due]
        for _, call in due:
            call()
        for name in [*self.groups]:
            process = self.running.get(name)
            if process and name not in self.away and process.poll() is not None:
                self.ends[name.partition('-')[0], process.returncode] += 1
                self.start_again(name)
        for asked, fault in [*self.asked]:
            if asked.poll() is not None:
                self.asked.remove((asked, fault))
                if asked.returncode not in (0, 1, 2):
                    fail(f'{fault.what}: the command ended with {asked.returncode}')
                if asked.returncode:
                    fault.said.append(asked.stdout.read().strip())

    def ask(self, fault, *words):
        """A command to the coordinator, beside what goes on."""
        command = [PROGRAM, *words, '--coordinator', self.address, *self.access()]
        self.asked.append((subprocess.Popen(  # pylint: disable=consider-using-with
            [str(word) for word in command], cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT), fault))

    # What can happen. Each returns what it is, in words.

    def somebody(self, but=()):
        role = self.random.choices([*ROLES], ROLES.values())[0]
        found = [name for name in self.groups if name.startswith(role) and name in self.running
                 and name not in self.away and name not in but]
        return self.random.choice(found) if found else self.somebody(but)

    def kill_it(self, name):
        self.away.add(name)
        self.kill(name)
        seconds = self.random.uniform(0, 2)
        self.after(seconds, lambda: self.start_again(name))
        return f'kill -9 {name}, started again after {seconds:.1f} s'

    def stop_it(self, name):
        process = self.running[name]
        process.send_signal(signal.SIGSTOP)
        seconds = self.random.uniform(0.1, 8)
        self.after(seconds, lambda: process.send_signal(signal.SIGCONT))
        return f'{name} stopped for {seconds:.1f} s'

    def cut_it(self, name):
        seconds, how = self.random.uniform(0.2, 6), self.random.choice([*CUTS])
        protocol = ['-p', 'tcp'] if CUTS[how][0] == 'REJECT' else []
        rule = ['OUTPUT', *protocol, '-m', 'owner', '--gid-owner', str(self.groups[name]), '-j',
                *CUTS[how]]
        subprocess.run(['iptables', '-w', '-A', *rule], check=True)
        self.after(seconds, lambda: subprocess.run(['iptables', '-w', '-D', *rule], check=True))
        return f'{name} cut off for {seconds:.1f} s: {how}'

    def drain(self, fault):
        name = f'server-{self.random.randrange(SERVERS)}'
        self.ask(fault, 'drain', name)
        return f'shoal drain {name}'

    def scale(self, fault):
        words = ['scale', '--servers', str(self.random.randint(1, SERVERS))]
        if self.random.random() < 0.5:  # in waves
            words += ['--rate', '10MB/s']
        self.ask(fault, *words)
        return f'shoal {" ".join(words)}'

    def join(self, _):
        if GUEST not in self.running or GUEST in self.away:
            self.start_again(GUEST)
            return f'{GUEST} joins'
        self.away.add(GUEST)
        self.running[GUEST].terminate()
        return f'{GUEST} is told to leave'

    def inflict(self, fault):
        harms = {'kill': self.kill_it, 'stop': self.stop_it, 'cut': self.cut_it}
        if fault.kind in harms:
            return harms[fault.kind](self.somebody())
        if fault.kind != 'both':
            return {'drain': self.drain, 'scale': self.scale, 'join': self.join}[fault.kind](fault)
        one = self.somebody()
        pair = [self.random.choice([*harms.values()])(name)
                for name in (one, self.somebody(but=[one]))]
        return ' and '.join(pair)

    # A job.

    def train_through(self, name, kinds, deadline):
        """Trains with faults of these kinds; returns those that came before its end."""
        self.train(name, **JOB, cluster={'servers': self.random.randint(2, 3), 'workers': WORKERS})
        steps = Steps(self.folder / f'train-{name}.log')
        points = sorted(self.random.sample(range(10, STEPS - 40), len(kinds)))
        faults = []
        while self.running[f'train-{name}'].poll() is None:
            self.pump()
            for new in steps.update():
                for fault in faults:
                    if fault.seconds is None and new:
                        fault.seconds = time.monotonic() - fault.began
                    fault.again += fault.seconds is None
            if len(faults) < len(kinds) and steps.newest >= points[len(faults)]:
                fault = Fault(kinds[len(faults)], '', name, steps.highest, time.monotonic())
                faults.append(fault)
                fault.what = self.inflict(fault)
            if time.monotonic() > deadline:
                fail(f'{name} hangs at step {steps.newest} after\n' + '\n'.join(map(str, faults)))
            time.sleep(0.01)
        return faults

    def rest(self):
        """All faults are over, and all that are to be there are."""
        self.pump(all_of_it=True)
        if GUEST in self.running and GUEST not in self.away:
            self.join(None)
        wanted = len(self.groups) - 1  # but for the guest

        def whole():
            self.pump()
            return not self.asked and len(self.up()) == wanted
        processes.wait_for('the cluster is whole again', whole, 60)

    def hash_of(self, name):
        return self.shoal('checkpoint', 'hash', f'{name}-checkpoints').strip()


PROGRAM = processes.PROGRAMS / 'shoal'


def draw_kinds(draw, faults):
    """As many of each kind as its weight has it, in any order."""
    total = sum(WEIGHTS.values())
    kinds = [kind for kind, weight in WEIGHTS.items() for _ in range(weight * faults // total)]
    kinds += draw.choices([*WEIGHTS], WEIGHTS.values(), k=faults - len(kinds))
    draw.shuffle(kinds)
    return kinds


def table(faults, cluster):
    """Yields a line for each kind."""
    yield '| fault | number | seconds to a new step, median | most | steps again, median | most |'
    yield '|---|---|---|---|---|---|'
    for kind in WEIGHTS:
        of_kind = [fault for fault in faults if fault.kind == kind]
        seconds = [fault.seconds for fault in of_kind if fault.seconds is not None] or [0]
        again = [fault.again for fault in of_kind] or [0]
        yield (f'| {kind} | {len(of_kind)} | {statistics.median(seconds):.2f} | '
               f'{max(seconds):.2f} | {statistics.median(again):g} | {max(again)} |')
    yield ''
    ends = ', '.join(f'{role} {code}: {count}' for (role, code), count in
                     sorted(cluster.ends.items()))
    yield f'Exit codes of processes that ended and were started again: {ends or "none"}.'


def left_behind(groups, shared_before):
    """Yields processes and shared memory that outlived the cluster."""
    for entry in pathlib.Path('/proc').iterdir():
        with contextlib.suppress(OSError, ValueError):
            if int(entry.name) and entry.stat().st_gid in groups.values():
                yield (entry / 'cmdline').read_text(encoding='utf-8').replace('\0', ' ')
    yield from set(os.listdir('/dev/shm')) - shared_before


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--faults', type=int, default=50)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--report', type=pathlib.Path, help='every fault, and a table')
    options = parser.parse_args()
    shared_before = set(os.listdir('/dev/shm'))
    faults, jobs = [], 0
    with tempfile.TemporaryDirectory(prefix='campaign-') as folder:
        with Campaign(folder, options.seed) as cluster:
            processes.make_model(cluster.folder, shape='tiny')
            began = time.monotonic()
            cluster.train_through('undisturbed', [], began + 300)
            cluster.ended('undisturbed')
            undisturbed, expected = time.monotonic() - began, cluster.hash_of('undisturbed')
            print(f'undisturbed: {undisturbed:.1f} s, {expected}', flush=True)
            kinds = draw_kinds(cluster.random, options.faults)
            while kinds:
                jobs += 1
                name = f'job-{jobs}'
                most = 3 * undisturbed + FAULTS_A_JOB * SECONDS_A_FAULT
                came = cluster.train_through(name, kinds[:FAULTS_A_JOB], time.monotonic() + most)
                cluster.rest()
                print('\n'.join(map(str, came)), flush=True)
                cluster.ended(name)
                if cluster.hash_of(name) != expected:
                    fail(f'{name} has other weights than an undisturbed job')
                faults += came
                kinds = kinds[len(came):]
        left = list(left_behind(cluster.groups, shared_before))
    if left:
        fail('left behind: ' + ', '.join(left))
    lines = [*table(faults, cluster), '']
    print('\n'.join(lines))
    if options.report:
        options.report.write_text('\n'.join([*lines, *(f'- {fault}' for fault in faults)]) + '\n',
                                  encoding='utf-8')
    print(f'{len(faults)} faults in {jobs} jobs, all with the weights of an undisturbed one')


if __name__ == '__main__':
    main()
