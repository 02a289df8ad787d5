#!/usr/bin/env python3
"""What people get wrong when they deploy: each mistake is one line that says what, at once where it
cannot come right, else (others may still change) while the process asks again and again.
"""

import os
import sys
import tempfile

import processes

SECONDS = 120


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


def wrong_token(cluster):
    path = cluster.folder / 'other-token'
    path.touch(mode=0o600)
    path.write_text(os.urandom(24).hex(), encoding='utf-8')
    return path


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
    print(*findings, sep='\n', end='\n' if findings else '')
    print(f'{count} mistakes, {len(findings)} findings')
    return 1 if findings else 0


if __name__ == '__main__':
    sys.exit(main())
