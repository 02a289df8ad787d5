#!/usr/bin/env python3
"""What people get wrong when they deploy: each mistake is one line that says what, at once where it
cannot come right, else (others may still change) while the process asks again and again.
"""

import contextlib
import os
import sqlite3
import subprocess
import sys
import tempfile

import processes

SECONDS = 120
MOST_WAITING = 100  # jobs, as CoordinatorCore::kMaxWaiting


def mistakes(cluster):
    """(what, what is said of it, the exit code unless it asks again and again, program, arguments)
    """
    certificates, foreign = cluster.certificates, cluster.folder / 'foreign'
    cluster.shoal('tls', 'init', foreign)
    token = ['--token-file', cluster.token]
    let_in = [*token, '--tls', certificates]
    member = ['--coordinator', cluster.address, '--index', 7, '--stay']
    port = cluster.address.partition(':')[2]
    taken = f'{port}: Address already in use'
    yield ('a Secret without the token', 'cannot open nothing: No such file', 2,
           'server', [*member, '--token-file', 'nothing'])
    yield ('a Secret without the certificate', '--tls: cannot open nothing/tls.crt: No such', 2,
           'server', [*member, *token, '--tls', 'nothing'])
    yield ("another role's certificate", "it is a worker's certificate, not a server's", 2,
           'server', [*member, *token, '--tls', certificates / 'worker'])
    yield ("another CA's certificate", 'is of a foreign CA, not of one in ca.crt', None,
           'server', [*member, *token, '--tls', foreign])
    yield ('no certificate', 'it may want TLS: --tls', None, 'worker', [*member, *token])
    yield ('another token', 'the call has no token, or another one than', 1,
           'worker', [*member, '--token-file', wrong_token(cluster), '--tls', certificates])
    for flag, value in (('--listen', cluster.address), ('--metrics-port', port),
                        ('--health-port', port)):
        yield (f'a port in use, {flag}', taken, 2, 'coordinator', [*let_in, flag, value])
    yield ('two coordinators on one volume', 'another coordinator has this state file open', 2,
           'coordinator', [*let_in, '--state', cluster.folder / 'coordinator.db'])
    yield ('a state file of a newer version', 'was written by a newer shoal-coordinator', 2,
           'coordinator', [*let_in, '--state', newer_state(cluster)])


def wrong_token(cluster):
    path = cluster.folder / 'other-token'
    path.touch(mode=0o600)
    path.write_text(os.urandom(24).hex(), encoding='utf-8')
    return path


def newer_state(cluster):
    path = cluster.folder / 'newer.db'
    with contextlib.closing(sqlite3.connect(path)) as state:
        state.execute('PRAGMA user_version = 99')
    return path


def fill_queue(cluster):
    """A job that waits for a worker, then, in the state file, as many like it as may wait."""
    processes.make_model(cluster.folder)
    of_cluster = {'coordinator': cluster.address, 'servers': 1, 'workers': 1,
                  'start_timeout_seconds': 3600}
    job = processes.write_job(cluster.folder / 'waits.yaml', cluster=of_cluster)
    cluster.shoal('train', job, '--detach', *cluster.access())
    cluster.kill('coordinator')
    with contextlib.closing(sqlite3.connect(cluster.folder / 'coordinator.db')) as state, state:
        state.executemany('INSERT INTO jobs SELECT ?, request, outcome FROM jobs LIMIT 1',
                          [(f'job-{number:012x}',) for number in range(1, MOST_WAITING)])
    cluster.start_coordinator()
    return processes.write_job(cluster.folder / 'more.yaml', cluster=of_cluster)


def submit_to_a_full_queue(cluster):
    """Same as make, for the command line: of a hundred jobs none is lost for one more."""
    job = fill_queue(cluster)
    here = ['--coordinator', cluster.address, *cluster.access()]
    refused = subprocess.run([processes.PROGRAMS / 'shoal', 'train', job, '--detach',
                              *cluster.access()], cwd=cluster.folder, check=False, text=True,
                             capture_output=True)
    errors = [line for line in refused.stderr.split('\n') if 'error' in line]
    said = f'{MOST_WAITING} jobs wait already: stop one, or try again later'
    waiting = len(cluster.shoal('jobs', '--json', *here).split('\n')) - 1
    if (refused.returncode != 2 or len(errors) != 1 or said not in errors[0] or
            waiting != MOST_WAITING):
        return [f'a full queue: not one line with "{said}", exit code {refused.returncode}, '
                f'{waiting} jobs: {refused.stderr}']
    print(f'a full queue: {errors[0]}')
    return []


def make(cluster, number, what, said, wanted, program, arguments):
    """Returns what was found wrong with what is said of the mistake."""
    name = f'mistake-{number}'
    listen = [] if '--listen' in arguments else ['--listen', '127.0.0.1:0']
    process = cluster.start(name, [processes.PROGRAMS / f'shoal-{program}', *listen, *arguments],
                            cwd=cluster.folder)
    processes.wait_for(what, lambda: said in cluster.log(name) or process.poll() is not None,
                       SECONDS)
    if wanted is None:
        process.terminate()
    code = process.wait(SECONDS)
    level = ' error ' if wanted else ' warning '
    lines = [line for line in cluster.log(name).split('\n') if level in line]
    if len(lines) != 1 or said not in lines[0] or wanted not in (code, None):
        return [f'{what}: not one line with "{said}", exit code {code}: {cluster.log(name)}']
    print(f'{what}: {lines[0].partition(program)[2].lstrip(": ")}')
    return []


def main():
    findings, count = [], 0
    with tempfile.TemporaryDirectory(prefix='shoal-mistakes-') as folder:
        with processes.Cluster(folder, servers=1, workers=0, tls=True) as cluster:
            for count, mistake in enumerate(mistakes(cluster), 1):
                findings += make(cluster, count, *mistake)
            findings += submit_to_a_full_queue(cluster)
            count += 1
    print(*findings, sep='\n', end='\n' if findings else '')
    print(f'{count} mistakes, {len(findings)} findings')
    return 1 if findings else 0


if __name__ == '__main__':
    sys.exit(main())
