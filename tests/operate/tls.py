#!/usr/bin/env python3
"""Part 6: a cluster over mutual TLS. All its certificates and the CA are replaced while a job runs:
no step is dropped, members that come after connect with the new ones, and the weights are those of
a run in plain text, to the bit. Whoever has no good certificate is refused, by name.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

import processes

ROLES = ('coordinator', 'server', 'worker', 'client')
EXPIRY = 'shoal_tls_certificate_expiry_timestamp_seconds{kind="identity"}'
READ = 'has new certificates'  # says who has read them
WORKER_URI = 'spiffe://shoal.local/ns/default/sa/shoal-worker'
JOB = {'train': {'steps': 100000, 'warmup_steps': 2}, 'service': {'accumulate': 'exact'},
       'checkpoint': {'every_steps': 0, 'export_huggingface': False}}


def fail(what):
    sys.exit(f'tls: {what}')


class Certificates:
    """The folder of a cluster: a link, so that all of it is replaced at once."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.link = cluster.certificates
        first = self.link.with_name('first')
        self.link.rename(first)
        self.current = first
        self.link.symlink_to(first)

    def put(self, name, own, trusted):
        """Certificates of the folder `own`, and the CAs of all those that are `trusted`."""
        made = self.link.with_name(name)
        for role in ROLES:
            shutil.copytree(own / role, made / role)
            (made / role / 'ca.crt').write_text(
                ''.join((folder / 'ca.crt').read_text(encoding='utf-8') for folder in trusted),
                encoding='utf-8')
        following = self.link.with_name('following')
        following.symlink_to(made)
        os.replace(following, self.link)
        self.current = made

    def make(self, name, *arguments):
        self.cluster.shoal('tls', 'init', name, *arguments)
        return self.link.with_name(name)


def ask(cluster, *arguments, within=()):
    """(exit code, what it said) of a command to the coordinator"""
    done = subprocess.run(
        [*within, str(processes.PROGRAMS / 'shoal'), 'status', '--coordinator', cluster.address,
         '--token-file', str(cluster.token), *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


def check_bare_machine(cluster, certificates):
    """One that has nobody's CA certificates where gRPC looks for them."""
    hidden = ' && '.join(f'{{ [ ! -d {folder} ] || mount -t tmpfs tmpfs {folder}; }}'
                         for folder in ('/etc/ssl/certs', '/usr/share/grpc'))
    bare = ['unshare', '--mount', 'sh', '-c', f'{hidden} && exec "$@"', 'sh']
    if subprocess.run([*bare, 'true'], check=False).returncode != 0:
        print('not tried without certificates of the system: no folder can be hidden here')
        return
    code, text = ask(cluster, '--tls', certificates.link, within=bare)
    if code != 0:
        fail(f'without certificates of the system: {text}')


def expect_refused(cluster, what, said, *arguments):
    code, text = ask(cluster, *arguments)
    if code == 0 or said not in text or len(text.strip().split('\n')) != 1:
        fail(f'{what}: exit code {code}, not one line with "{said}": {text}')
    print(f'{what}: {text.strip()}')


def openssl(*words, **how):
    return subprocess.run(['openssl', *map(str, words)], stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=60, **how)


def is_told(cluster, shown, said):
    """Whether the coordinator says so of who connects and shows that certificate."""
    openssl('s_client', '-connect', cluster.address, '-alpn', 'h2', *shown, check=False)
    return said in cluster.log('coordinator')


def expired(certificates, ca):
    """A worker's certificate of that CA, which ends as it begins: what shows it."""
    key, wanted, made = (certificates.link.with_name(f'expired.{end}')
                         for end in ('key', 'csr', 'crt'))
    openssl('req', '-new', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes',
            '-subj', '/CN=expired', '-addext', f'subjectAltName=URI:{WORKER_URI}', '-keyout', key,
            '-out', wanted, check=True)
    openssl('x509', '-req', '-in', wanted, '-CA', ca / 'ca.crt', '-CAkey', ca / 'ca.key',
            '-copy_extensions', 'copy', '-days', 0, '-out', made, check=True)
    return ['-cert', made, '-key', key]


def replace_all(cluster, certificates):
    """As docs/security.md says: three moves."""
    first = certificates.current
    second = certificates.make('second', '--days', 80)
    before = {name: cluster.value(name, EXPIRY) for name in cluster.ports}
    for number, (name, own, trusted) in enumerate((
            ('both', first, [first, second]), ('new', second, [first, second]),
            ('end', second, [second])), 1):
        certificates.put(name, own, trusted)
        processes.wait_for(f'all have read what is in {name}', lambda number=number: all(
            cluster.log(each).count(READ) == number for each in cluster.ports))
    if any(cluster.value(name, EXPIRY) in (None, was) for name, was in before.items()):
        fail(f'{EXPIRY} is not that of the new certificates')
    processes.wait_for('the coordinator takes the old CA for foreign',
                       lambda: ask(cluster, '--tls', first)[0] != 0)
    return first, second


def check_refusals(cluster, certificates, first, second):
    code, text = ask(cluster, '--tls', certificates.link)
    if code != 0:
        fail(f'the new certificate is refused: {text}')
    check_bare_machine(cluster, certificates)
    expect_refused(cluster, 'the old certificate', 'is of a foreign CA', '--tls', first)
    foreign = certificates.make('foreign')
    expect_refused(cluster, 'a foreign certificate', 'is of a foreign CA', '--tls', foreign)
    elsewhere = certificates.make('elsewhere', '--ca', second, '--namespace', 'elsewhere')
    expect_refused(cluster, 'another namespace', 'is not of namespace elsewhere', '--tls',
                   elsewhere)
    expect_refused(cluster, 'another role', "it is a worker's certificate, not a client's",
                   '--tls', second / 'worker')
    expect_refused(cluster, 'plain text', 'it may want TLS: --tls')
    for shown, said in (([], 'a connection: it shows no certificate'),
                        (expired(certificates, second), f'{WORKER_URI} has expired')):
        # Of refusals one a second has a line.
        processes.wait_for(f'the coordinator says: {said}',
                           lambda shown=shown, said=said: is_told(cluster, shown, said), pause=1.1)
    if not cluster.value('coordinator', 'shoal_rpc_refused_total{reason="identity"}'):
        fail('refusals are not counted')


def run_encrypted(folder):
    """(steps, hash) of a job that is stopped once its certificates are replaced"""
    with processes.Cluster(folder, tls=True) as cluster:
        cluster.train(**JOB)
        cluster.wait_for_steps(3)
        certificates = Certificates(cluster)
        first, second = replace_all(cluster, certificates)
        cluster.wait_for_steps(3)
        for series in ('shoal_train_dropped_attempts_total', 'shoal_train_workers_lost_total'):
            if cluster.value('coordinator', series) != 0:
                fail(f'{series} is not 0 after certificates were replaced')
        print(f'certificates and CA replaced by step {cluster.steps():.0f}: no step dropped')
        check_refusals(cluster, certificates, first, second)
        cluster.kill('worker-1', signal.SIGTERM)
        cluster.start_member('worker-1')  # connects to all with the new certificates
        processes.wait_for('the worker is back in the job', lambda: (
            cluster.value('worker-1', 'shoal_worker_microbatches_total') or 0) > 0)
        cluster.stop()
        end = [json.loads(line) for line in cluster.log('train-job').split('\n')
               if '"step"' in line]
        return end[-1]['step'], cluster.shoal('checkpoint', 'hash', 'job-checkpoints')


def run_plain(folder, steps):
    with processes.Cluster(folder) as cluster:
        cluster.train('job', '--steps', steps, **JOB)
        cluster.ended()
        return cluster.shoal('checkpoint', 'hash', 'job-checkpoints')


def main():
    if not shutil.which('openssl'):
        processes.skip('there is no openssl')
    with tempfile.TemporaryDirectory(prefix='shoal-tls-') as folder:
        steps, encrypted = run_encrypted(folder)
    with tempfile.TemporaryDirectory(prefix='shoal-plain-') as folder:
        plain = run_plain(folder, steps)
    if encrypted != plain:
        fail(f'the weights after {steps} steps differ: {encrypted}, in plain text {plain}')
    print(f'{steps} steps over TLS and in plain text: the same weights')


if __name__ == '__main__':
    main()
