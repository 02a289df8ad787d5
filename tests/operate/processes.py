"""Processes that a test of operations starts, all of which end with it: a cluster that stays, a
Prometheus that reads it, an alertmanager with a webhook of ours. On the loopback interface alone.
"""

import contextlib
import http.server
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(os.environ.get('SHOAL_BIN') or ROOT / 'build/release/bin')
DEBIAN = pathlib.Path(os.environ.get('SHOAL_OPERATE_DEBIAN') or ROOT / 'build/operate/debian')
JOB = 'test'  # the label shoal_job of all targets
SKIP = 77


def skip(why):
    print(f'SKIPPED: {why}')
    sys.exit(SKIP)


# Below those that the kernel gives to who connects: what is free stays so until it is listened at.
PORTS = range(20000, 32000)
given = set()  # ports


def free_port():
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(('127.0.0.1', port))
            if port not in given:
                given.add(port)
                return port


def wait_for(what, holds, seconds=120, pause=0.2):
    """Returns what `holds` returns once it is true; fails by name."""
    deadline = time.monotonic() + seconds
    while True:
        found = holds()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f'{what}: not within {seconds} s')
        time.sleep(pause)


def is_ready(url):
    try:
        with urllib.request.urlopen(f'{url}/-/ready', timeout=5) as reply:
            return reply.status == 200
    except (urllib.error.URLError, OSError):
        return False


def shoal(*words, **how):
    """What the command says."""
    return subprocess.run([str(word) for word in (PROGRAMS / 'shoal', *words)], check=True,
                          text=True, stdout=subprocess.PIPE, **how).stdout


def make_model(folder, shape=ROOT / 'examples/quickstart-model.json', name='model'):
    """Data, tokenizer and model from seeds, unless they are there."""
    if not (folder / 'tokenizer').exists():
        shoal(*'data synth --kind mixed --samples 2000 --seed 1 --output train.jsonl'.split(),
              cwd=folder)
        shoal(*'data tokenizer train.jsonl --vocabulary 512 --output tokenizer'.split(),
              cwd=folder)
    if not (folder / name).exists():
        shoal('model', 'init', '--shape', shape, '--tokenizer', 'tokenizer', '--output', name,
              cwd=folder)


def write_job(path, **changes):
    """A job file that trains what make_model makes; `changes` are keys of its sections."""
    job = {
        'model': 'model',
        'data': {'train': 'train.jsonl', 'template': 'chatml', 'max_sequence_tokens': 512,
                 'oversize': 'skip'},
        'train': {'steps': 100, 'minibatch_samples': 16, 'learning_rate': 3e-3,
                  'schedule': 'cosine', 'warmup_steps': 10},
        'checkpoint': {'directory': f'{path.stem}-checkpoints', 'every_steps': 20, 'keep': 2},
    }
    for section, keys in changes.items():
        if isinstance(keys, dict):
            job.setdefault(section, {}).update(keys)
        else:
            job[section] = keys
    path.write_text(json.dumps(job, indent=1), encoding='utf-8')  # JSON is YAML
    return path


class Processes:
    """Starts processes with a log each; all are ended at exit, whatever happened."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.running = {}

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        return self

    def __exit__(self, *_):
        for process in reversed(self.running.values()):  # members before their coordinator
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, name, command, **how):
        log = open(self.folder / f'{name}.log', 'ab')  # pylint: disable=consider-using-with
        with log:
            self.running[name] = subprocess.Popen(  # pylint: disable=consider-using-with
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                **how)
        return self.running[name]

    def kill(self, name, number=signal.SIGKILL):
        self.running[name].send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.running[name].wait(120)

    def log(self, name):
        return (self.folder / f'{name}.log').read_text(encoding='utf-8', errors='replace')


def value_in(metrics, series):
    """The value of a series in the text of a process's metrics, or None."""
    for line in metrics.split('\n'):
        if line.rpartition(' ')[0] == series:
            return float(line.rpartition(' ')[2])
    return None


def chosen(scenes, names):
    """The scenes of those names; without names all."""
    known = {scene.__name__ for scene in scenes}
    if unknown := sorted(set(names) - known):
        sys.exit(f'no scene {", ".join(unknown)}; there are {", ".join(sorted(known))}')
    return [scene for scene in scenes if not names or scene.__name__ in names]


class Cluster(Processes):
    """A coordinator, servers and workers that stay, and the list of targets for Prometheus."""

    def __init__(self, folder, servers=2, workers=2, lease=10, threads=1, tls=False, flags=()):
        super().__init__(folder)
        self.certificates = self.folder / 'certificates' if tls else None
        self.lease, self.threads = lease, threads
        self.flags = flags  # of all programs
        self.members = [f'server-{index}' for index in range(servers)]
        self.members += [f'worker-{index}' for index in range(workers)]
        self.ports = {name: free_port() for name in ['coordinator', *self.members]}
        self.address = f'127.0.0.1:{free_port()}'
        self.token = self.folder / 'token'
        self.token.touch(mode=0o600)
        self.token.write_text(os.urandom(24).hex(), encoding='utf-8')
        self.targets = self.folder / 'targets.json'
        self.targets.write_text(json.dumps([
            {'targets': [f'127.0.0.1:{port}'],
             'labels': {'shoal_job': JOB, 'component': name.partition('-')[0],
                        'instance': name}}
            for name, port in self.ports.items()]), encoding='utf-8')

    def __enter__(self):
        super().__enter__()
        for program in ('shoal', 'shoal-coordinator', 'shoal-server', 'shoal-worker'):
            if not os.access(PROGRAMS / program, os.X_OK):
                skip(f'{PROGRAMS / program} is not built')
        if self.certificates:
            self.shoal('tls', 'init', self.certificates)
        self.start_coordinator()
        for name in self.members:
            self.start_member(name)
        wait_for('all members have a lease', lambda: len(self.up()) == len(self.ports))
        return self

    def common(self, name, folder=None):
        return ['--stay', *self.access(folder), '--metrics-host', '127.0.0.1',
                '--metrics-port', self.ports[name], *self.flags]

    def access(self, folder=None):
        """What every program is told, to be let in."""
        folder = folder or self.folder
        tls = ['--tls', folder / self.certificates.name] if self.certificates else []
        return ['--token-file', folder / self.token.name, *tls]

    def start_coordinator(self, program=PROGRAMS / 'shoal-coordinator', wait=True, **how):
        self.start('coordinator', [program, '--listen', self.address,
                                   '--state', self.folder / 'coordinator.db',
                                   '--lease-seconds', self.lease, *self.common('coordinator')],
                   **how)
        if wait:
            wait_for('the coordinator answers', lambda: self.metrics('coordinator'))

    def start_member(self, name, *arguments, user=None):
        """`user`: its number, where it is another than ours."""
        role, _, index = name.partition('-')
        program, folder, how = PROGRAMS / f'shoal-{role}', None, {}
        if user is not None:
            folder = self.folder / f'of-{user}'
            folder.mkdir(exist_ok=True)
            self.folder.chmod(0o755)
            program = shutil.copy(program, folder)
            shutil.copy(self.token, folder)
            if self.certificates:
                shutil.copytree(self.certificates / role, folder / self.certificates.name)
            subprocess.run(['chown', '-R', f'{user}:{user}', folder], check=True)
            how = {'user': user, 'group': user, 'extra_groups': []}
        command = [program, '--coordinator', self.address, '--index', index]
        if role == 'worker':
            command += ['--threads', self.threads]
        self.start(name, [*command, *self.common(name, folder), *arguments], **how)

    def shoal(self, *words):
        return shoal(*words, cwd=self.folder)

    def metrics(self, name):
        """The text at /metrics, or nothing where it does not answer."""
        try:
            url = f'http://127.0.0.1:{self.ports[name]}/metrics'
            with urllib.request.urlopen(url, timeout=5) as reply:
                return reply.read().decode()
        except (urllib.error.URLError, OSError):
            return ''

    def discovered(self):
        """What the coordinator tells a Prometheus of its members."""
        url = f'http://127.0.0.1:{self.ports["coordinator"]}/targets'
        with urllib.request.urlopen(url, timeout=5) as reply:
            if reply.headers['Content-Type'] != 'application/json':
                raise AssertionError(f'{url} is {reply.headers["Content-Type"]}')
            return json.load(reply)

    def value(self, name, series):
        """The value of a series of a process, or None."""
        return value_in(self.metrics(name), series)

    def up(self):
        """The processes that are registered."""
        found = ['coordinator']
        for role in ('server', 'worker'):
            count = self.value('coordinator', f'shoal_coordinator_members{{role="{role}"}}') or 0
            found += [role] * int(count)
        return found

    def train(self, name='job', *arguments, **changes):
        """Starts `shoal train`, which follows a job of that name to its end."""
        make_model(self.folder)
        counts = {role: sum(member.startswith(role) for member in self.members)
                  for role in ('server', 'worker')}
        changes['cluster'] = {'coordinator': self.address, 'servers': counts['server'],
                              'workers': counts['worker'], 'lease_seconds': self.lease,
                              **changes.get('cluster', {})}
        path = write_job(self.folder / f'{name}.yaml', **changes)
        self.start(f'train-{name}', [PROGRAMS / 'shoal', 'train', path, *self.access(), '--json',
                                     *arguments], cwd=self.folder)

    def ended(self, name='job', code=0, seconds=600):
        """Waits until that job has ended, with that exit code of `shoal train`."""
        found = self.running[f'train-{name}'].wait(seconds)
        if found != code:
            raise AssertionError(f'{name} ended with {found}, not with {code}:\n'
                                 f'{self.log(f"train-{name}")[-2000:]}')

    def stop(self, name='job'):
        self.running[f'train-{name}'].send_signal(signal.SIGTERM)
        self.ended(name, 75)

    def steps(self):
        return self.value('coordinator', 'shoal_train_steps_total') or 0

    def wait_for_steps(self, more, seconds=300):
        goal = self.steps() + more
        wait_for(f'{more} more steps', lambda: self.steps() >= goal, seconds)


class Prometheus:
    """Reads a cluster every second."""

    def __init__(self, cluster, rules=None, alertmanager=None, interval=1):
        self.cluster = cluster
        self.address = f'127.0.0.1:{free_port()}'
        self.url = f'http://{self.address}'
        config = {
            'global': {'scrape_interval': f'{interval}s', 'evaluation_interval': f'{interval}s'},
            'scrape_configs': [{'job_name': 'shoal',
                                'file_sd_configs': [{'files': [str(cluster.targets)]}]}],
        }
        if rules:
            config['rule_files'] = [str(rules)]
        if alertmanager:
            config['alerting'] = {'alertmanagers': [
                {'static_configs': [{'targets': [alertmanager]}]}]}
        path = cluster.folder / 'prometheus.yml'
        path.write_text(json.dumps(config), encoding='utf-8')
        program = DEBIAN / 'usr/bin/prometheus'
        if not program.exists():
            skip(f'{program} is not there (scripts/operate-test.sh fetches it)')
        cluster.start('prometheus', [
            program, f'--config.file={path}', f'--web.listen-address={self.address}',
            f'--storage.tsdb.path={cluster.folder}/prometheus'])
        wait_for('Prometheus answers', lambda: is_ready(self.url))

    def query(self, expr):
        """[(labels, value)] now"""
        query = urllib.parse.urlencode({'query': expr})
        with urllib.request.urlopen(f'{self.url}/api/v1/query?{query}', timeout=10) as reply:
            found = json.load(reply)['data']['result']
        return [(each['metric'], float(each['value'][1])) for each in found]


class Alertmanager:
    """Sends what it is told to a webhook here; keeps what came."""

    def __init__(self, cluster):
        received = self.received = []  # (name, status, labels and the summary)

        class Webhook(http.server.BaseHTTPRequestHandler):
            def do_POST(self):  # pylint: disable=invalid-name
                body = self.rfile.read(int(self.headers['Content-Length']))
                for alert in json.loads(body)['alerts']:
                    received.append((
                        alert['labels']['alertname'], alert['status'],
                        {**alert['labels'], 'summary': alert['annotations']['summary']}))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Webhook)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = {
            'route': {'receiver': 'webhook', 'group_by': ['...'], 'group_wait': '0s',
                      'group_interval': '1s', 'repeat_interval': '1h'},
            'receivers': [{'name': 'webhook', 'webhook_configs': [
                {'url': f'http://127.0.0.1:{server.server_port}/', 'send_resolved': True}]}],
        }
        path = cluster.folder / 'alertmanager.yml'
        path.write_text(json.dumps(config), encoding='utf-8')
        self.address = f'127.0.0.1:{free_port()}'
        program = DEBIAN / 'usr/bin/prometheus-alertmanager'
        if not program.exists():
            skip(f'{program} is not there (scripts/operate-test.sh fetches it)')
        # It opens a file of its own under /usr/share, wherever it was unpacked: laid over for it.
        overlay = f'mount -t overlay -o lowerdir={DEBIAN}/usr/share:/usr/share overlay /usr/share'
        within = ['unshare', '--mount', *([] if os.getuid() == 0 else ['--map-root-user']),
                  'sh', '-c', f'{overlay} && exec "$@"', 'sh']
        if subprocess.run([*within, 'true'], check=False).returncode != 0:
            skip('no folder can be laid over another here, which the alertmanager needs')
        cluster.start('alertmanager', [
            *within, program, f'--config.file={path}', f'--web.listen-address={self.address}',
            '--cluster.listen-address=', f'--storage.path={cluster.folder}/alertmanager'])
        wait_for('the alertmanager answers', lambda: is_ready(f'http://{self.address}'))
