#!/usr/bin/env python3
"""Part 8: deploy/kubernetes/overlays/test on a real Kubernetes of one node (kubernetes/build.sh,
kubernetes/node.sh): jobs in turn on the same servers, and every pod lost or replaced while a job
runs. Each job ends with the hash of an undisturbed run.

  kubernetes.py PROGRAMS [SCENE...]      PROGRAMS: what build.sh made; SCENE: by name, default all

SHOAL_BUILD: a folder with Shoal's programs in `bin`.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import yaml

import manifests
import processes

HERE = pathlib.Path(__file__).resolve().parent
IMAGE, PAUSE = 'shoal.local/shoal:0.1.0', 'shoal.local/pause:1'
STEPS = 150
MORE_STEPS = 600  # of a job in which pods come and go
METRICS = {'coordinator': 9400, 'server': 9410, 'worker': 9420}  # ports
CGROUPS = pathlib.Path('/sys/fs/cgroup')


def run(*command, **how):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          check=False, **how)
    if done.returncode != 0:
        raise RuntimeError(f'{" ".join(map(str, command))}: {done.stdout}{done.stderr}')
    return done.stdout


def make_images(folder, programs):
    """shoal's image and the one that holds a pod's namespaces, as files for the node."""
    images = folder / 'images'
    images.mkdir()
    print(run(processes.ROOT / 'deploy/image/build.sh', '--build', os.environ['SHOAL_BUILD'],
              '--tag', IMAGE).strip())
    pause = folder / 'pause'
    pause.mkdir()
    shutil.copy(programs / 'pause', pause)
    (pause / 'Containerfile').write_text('FROM scratch\nCOPY pause /pause\n'
                                         'ENTRYPOINT ["/pause"]\n', encoding='utf-8')
    run('podman', 'build', '--quiet', '--tag', PAUSE, pause)
    for number, image in enumerate((IMAGE, PAUSE)):
        run('podman', 'save', '--format', 'docker-archive', '--output', images / f'{number}.tar',
            image)
        run('podman', 'rmi', '--force', image)


class Node(processes.Processes):
    """A Kubernetes of one node, in namespaces that end with it."""

    def __init__(self, folder, programs):
        super().__init__(folder)
        self.programs = programs
        self.inside = 0  # process 1 of the namespaces

    def __enter__(self):
        super().__enter__()
        if any(CGROUPS.glob('*/kubepods')):
            processes.skip('a kubelet runs on this machine')
        unshare = self.start('node', [
            'unshare', '--net', '--mount', '--pid', '--fork', '--kill-child', '--propagation',
            'private', '--mount-proc', HERE / 'kubernetes/node.sh', self.programs, self.folder])
        children = pathlib.Path(f'/proc/{unshare.pid}/task/{unshare.pid}/children')

        def started():
            if unshare.poll() is not None:
                raise RuntimeError(f'the node ended: {self.log("node")}')
            return (self.folder / 'run/started').exists()
        processes.wait_for('the node starts', started, 240)
        self.inside = int(children.read_text())
        processes.wait_for('the node is ready', self.is_ready, 240)
        return self

    def __exit__(self, *error):
        super().__exit__(*error)  # ends unshare, and with it all that is inside
        for _ in range(50):
            left = sorted(CGROUPS.glob('*/kubepods/**/'), key=lambda path: -len(path.parts))
            for path in left:
                with contextlib.suppress(OSError):
                    path.rmdir()
            if not left:
                return
            time.sleep(0.2)

    def within(self, *command, **how):
        return run('nsenter', '--target', self.inside, '--net', '--mount', '--pid', '--',
                   *command, **how)

    def kubectl(self, *words, **how):
        return self.within('kubectl', '--kubeconfig', self.folder / 'kubeconfig',
                           '--namespace', 'shoal', *words, **how)

    def signal(self, pod, name):
        """Sends a signal to the one process of a pod, whom Kubernetes does not tell."""
        container = self.container(pod)['containerID'].rpartition('/')[2]
        found = self.within('sh', '-c', 'grep -l "$1" /proc/[0-9]*/cgroup 2>/dev/null; true', 'sh',
                            container).split()
        if len(found) != 1:
            raise AssertionError(f'{pod} has the processes {found}')
        self.within('kill', f'-{name}', found[0].split('/')[2])

    def get(self, *words):
        return json.loads(self.kubectl('get', *words, '--output', 'json'))

    def apply(self, objects):
        # Fields that 1.20 has not heard of are left out by it, and named by nobody.
        self.kubectl('apply', '--validate=false', '--filename', '-',
                     input=yaml.safe_dump_all(objects))

    def is_ready(self):
        try:
            nodes = self.get('nodes')['items']
        except RuntimeError:
            return False
        return [True for node in nodes for each in node['status']['conditions']
                if each['type'] == 'Ready' and each['status'] == 'True']

    def container(self, pod):
        """What the kubelet says of a pod's container; empty where there is no pod."""
        try:
            status = self.get('pod', pod)['status']
        except RuntimeError:
            return {}
        return (status.get('containerStatuses') or [{}])[0]


class Service:
    """Shoal on the node, by the manifests of the overlay."""

    def __init__(self, node):
        self.node = node
        self.data = node.folder / 'srv'
        self.components = []

    def start(self):
        """Pods first, the Secret that they want later: until then Kubernetes names it."""
        self.make_data()
        token = self.node.folder / 'token'
        token.write_text(os.urandom(24).hex(), encoding='utf-8')
        built = self.build('overlays/test')
        self.node.apply([thing for thing in built if thing['kind'] == 'Namespace'])
        self.node.apply([thing for thing in built if thing['kind'] != 'Namespace'])
        print(processes.wait_for('the missing Secret is named', self.missing_secret))
        start = time.monotonic()
        self.node.kubectl('create', 'secret', 'generic', 'shoal-token', f'--from-file={token}')
        self.wait_until_whole()
        print(f'five pods are ready after {time.monotonic() - start:.0f} s', flush=True)

    def build(self, root):
        """The objects of a kustomization, with the components that were chosen."""
        with tempfile.TemporaryDirectory(dir=self.node.folder) as folder:
            return manifests.build_upon(pathlib.Path(folder), namespace='shoal', resources=[root],
                                        components=self.components)

    def encrypt(self):
        """All pods anew, with a certificate for each role."""
        certificates = self.node.folder / 'certificates'
        processes.shoal('tls', 'init', certificates, '--namespace', 'shoal')
        for role in (*METRICS, 'client'):
            self.node.kubectl('create', 'secret', 'generic', f'shoal-{role}-tls',
                              f'--from-file={certificates / role}')
        self.components = ['components/tls']
        self.node.apply(self.build('overlays/test'))
        self.wait_until_whole()

    def missing_secret(self):
        """What is said of it where pods are looked at."""
        said = self.node.kubectl('get', 'events', '--field-selector', 'reason=FailedMount',
                                 '--output', r'jsonpath={range .items[*]}{.message}{"\n"}{end}')
        return next((line for line in said.split('\n')
                     if 'secret "shoal-token" not found' in line), None)

    def make_data(self):
        processes.make_model(self.data)
        (self.data / 'state').mkdir()
        run('chown', '-R', '65532:65532', self.data)

    def wait_until_whole(self):
        for kind in ('statefulset/shoal-coordinator', 'statefulset/shoal-server',
                     'deployment/shoal-worker'):
            self.node.kubectl('rollout', 'status', kind, '--timeout=180s')

    def pods(self, component):
        found = self.node.get('pods', '--selector', f'app.kubernetes.io/component={component}')
        return sorted(pod['metadata']['name'] for pod in found['items']
                      if pod['status']['phase'] == 'Running' and
                      'deletionTimestamp' not in pod['metadata'])

    def metric(self, series, pod='shoal-coordinator-0', role='coordinator'):
        """Of a pod that must answer and have it."""
        path = f'/api/v1/namespaces/shoal/pods/{pod}:{METRICS[role]}/proxy/metrics'
        value = processes.value_in(self.node.kubectl('get', '--raw', path), series)
        if value is None:
            raise AssertionError(f'{pod} has no {series}')
        return value

    def submit(self, name, steps, **cluster):
        """A Job of `shoal train`: deploy/kubernetes/job's, with the changes of the overlay."""
        processes.write_job(
            self.data / f'{name}.yaml', train={'steps': steps, 'threads_per_worker': 1},
            service={'accumulate': 'exact', 'partition_bytes': '64KiB'},
            checkpoint={'every_steps': 40},
            cluster={'coordinator': 'set:1', 'servers': 2, 'workers': 2, 'lease_seconds': 5,
                     **cluster})
        train = next(thing for thing in self.build('job')
                     if thing['metadata']['name'] == 'shoal-train')
        train['metadata']['name'] = f'train-{name}'
        pod = train['spec']['template']['spec']
        pod['enableServiceLinks'] = True
        container = pod['containers'][0]
        container.update(image=IMAGE, imagePullPolicy='Never')
        container['resources'] = {'requests': {'cpu': '100m', 'memory': '512Mi'},
                                  'limits': {'memory': '512Mi'}}
        container['args'] = [
            word.replace('/data/job.yaml', f'/data/{name}.yaml')
                .replace('shoal-coordinator:4000', '$(SHOAL_COORDINATOR_SERVICE_HOST):4000')
            for word in container['args']]
        for volume in pod['volumes']:
            if volume['name'] == 'data':
                del volume['persistentVolumeClaim']
                volume['hostPath'] = {'path': '/srv/shoal'}
        self.node.apply([train])

    def step(self, name):
        """The last step in the job's record."""
        path = self.data / f'{name}-checkpoints/record/metrics.jsonl'
        steps = re.findall(r'"step":(\d+)', path.read_text('utf-8')) if path.exists() else []
        return int(steps[-1]) if steps else 0

    def wait_for_step(self, name, step):
        processes.wait_for(f'step {step} of {name}', lambda: self.step(name) >= step, 240)

    def finish(self, name):
        """Waits until the Job is complete; returns the hash of the job's weights and moments."""
        def over():
            status = self.node.get('job', f'train-{name}')['status']
            if status.get('failed', 0) > 3:
                raise RuntimeError(f'{name} failed: {self.log_of(name)}')
            return status.get('succeeded')
        processes.wait_for(f'{name} ends', over, 400)
        done = run(processes.PROGRAMS / 'shoal', 'checkpoint', 'hash',
                   self.data / f'{name}-checkpoints')
        return done.split()[-1]

    def tell(self):
        """What there is to look at when something failed."""
        told = []
        with contextlib.suppress(RuntimeError):
            told = [self.node.kubectl('get', 'pods', '--output', 'wide')]
            for pod in (each for role in METRICS for each in self.pods(role)):
                told += [f'== {pod}', self.node.kubectl('logs', pod, '--tail=15')]
        return '\n'.join(told)

    def log_of(self, name):
        """What `shoal train` said but for its steps; nothing while a pod of it begins."""
        try:
            said = self.node.kubectl('logs', f'--selector=job-name=train-{name}', '--tail=-1')
        except RuntimeError:
            return ''
        return '\n'.join(line for line in said.split('\n') if '"event":"step"' not in line)


def ask(service, *words):
    """What a command that asks the coordinator says as JSON."""
    address = service.node.get('service', 'shoal-coordinator')['spec']['clusterIP']
    return json.loads(service.node.within(
        processes.PROGRAMS / 'shoal', *words, '--coordinator', f'{address}:4000', '--token-file',
        service.node.folder / 'token', '--json'))


def members(service):
    """{(role, index): host's name} as the coordinator has them"""
    return {(each['role'], each['index']): each['host']
            for each in ask(service, 'status')['members']}


# What befalls a job in its middle: (service, name of the job) -> what was seen.


def nothing(service, name):
    del service, name
    return 'ran by itself'


def same_servers(service, name):
    """The second job has the servers of the first, which were not started again."""
    del name
    for pod in service.pods('server'):
        if service.node.container(pod)['restartCount'] != 0:
            raise AssertionError(f'{pod} was started again')
    return 'the servers were not started again'


def worker_deleted(service, name):
    lost = service.pods('worker')[0]
    counts = ('shoal_train_packs_taken_back_total', 'shoal_train_dropped_attempts_total')
    before = [service.metric(count) for count in counts]
    service.node.kubectl('delete', 'pod', lost, '--grace-period=0', '--force')
    service.wait_for_step(name, service.step(name) + 20)
    packs, dropped = (service.metric(count) - was for count, was in zip(counts, before))
    if packs > 2 or dropped:
        raise AssertionError(f'a deleted worker cost {packs:.0f} packs, {dropped:.0f} attempts')
    return f'{lost}, deleted, cost {packs:.0f} packs and no attempt'


def coordinator_killed(service, name):
    """Its container is started again: the job goes on where it is, and who follows it reads on."""
    before = service.step(name)
    service.node.signal('shoal-coordinator-0', 'KILL')
    service.wait_for_step(name, before + 20)
    if service.node.get('job', f'train-{name}')['status'].get('failed'):
        raise AssertionError(f'`shoal train` ended: {service.log_of(name)}')
    return f'the coordinator was killed at step {before}, and the job went on where it was'


def coordinator_deleted(service, name):
    """It has two seconds to end, and the job goes on from the checkpoint that it makes of them."""
    before = service.step(name)
    service.node.kubectl('delete', 'pod', 'shoal-coordinator-0', '--grace-period=0', '--force')
    service.wait_for_step(name, before + 20)
    return f"the coordinator's pod was deleted at step {before}, and the job went on"


def trainer_killed(service, name):
    """Who follows the job is killed: another pod takes its place, and follows the same job."""
    before, pod = service.step(name), service.pods('trainer')[0]
    service.node.signal(pod, 'KILL')
    processes.wait_for('another follows', lambda: 'following it' in service.log_of(name), 60)
    return f'`shoal train` was killed at step {before}; the next pod followed the same job'


def rolled(service, name, kind):
    before = service.step(name)
    service.node.kubectl('rollout', 'restart', kind)
    service.wait_until_whole()
    service.wait_for_step(name, before + 10)
    return f'{kind} was replaced at step {before}'


def coordinator_rolled(service, name):
    return rolled(service, name, 'statefulset/shoal-coordinator')


def workers_rolled(service, name):
    return rolled(service, name, 'deployment/shoal-worker')


def server_deleted(service, name):
    """Server 0 is deleted: the pod that takes its place is server 0 again."""
    before, host = service.step(name), members(service)[('server', 0)]
    service.node.kubectl('delete', 'pod', 'shoal-server-0', '--grace-period=0', '--force')
    service.wait_until_whole()
    service.wait_for_step(name, before + 10)
    now = members(service)
    if (host, now[('server', 0)], now[('server', 1)]) != (
            'shoal-server-0', 'shoal-server-0', 'shoal-server-1'):
        raise AssertionError(f'servers are not what their pods say: {now}')
    return f'server 0 was deleted at step {before} and restored; pod 0 is server 0 again'


def server_stopped(service, name):
    """A server stands still: its pod goes unready, and its container is started again."""
    before, pod = service.step(name), 'shoal-server-1'
    container = service.node.container(pod)
    service.node.signal(pod, 'STOP')
    start = time.monotonic()
    processes.wait_for('the stopped server is unready',
                       lambda: not service.node.container(pod)['ready'], 60)
    unready = time.monotonic() - start
    processes.wait_for(
        'the stopped server is started again',
        lambda: service.node.container(pod)['restartCount'] > container['restartCount'], 180)
    again = time.monotonic() - start
    service.wait_until_whole()
    service.wait_for_step(name, before + 10)
    return (f'{pod}, stopped at step {before}, was unready after {unready:.0f} s and started again '
            f'after {again:.0f} s')


def servers_scaled(service, name):
    """The job's servers are the pods that are there, and who goes gives away what it holds."""
    seen = []
    for replicas in (4, 3):
        before = service.step(name)
        service.node.kubectl('scale', 'statefulset/shoal-server', f'--replicas={replicas}')

        def scaled(wanted=replicas):
            return ask(service, 'scale', 'status')['servers'] == wanted
        processes.wait_for(f'the job has {replicas} servers', scaled, 120)
        service.wait_for_step(name, service.step(name) + 10)
        told = ask(service, 'scale', 'status')
        if told['rollbacks']:
            raise AssertionError(f'a move was given up: {told["refusal"]}')
        pauses = ', '.join(f'{wave["pause_seconds"]:.2f} s' for wave in told['waves'])
        seen.append(f'{replicas} servers from step {before} on (pauses {pauses})')
    service.wait_until_whole()
    if service.pods('server') != [f'shoal-server-{index}' for index in range(3)]:
        raise AssertionError(f'servers are {service.pods("server")}')
    record = (service.data / f'{name}-checkpoints/record/metrics.jsonl').read_text('utf-8')
    if '"event":"lost"' in record or '"event":"resume"' in record:
        raise AssertionError('a server was lost, and did not give away what it held')
    service.node.kubectl('scale', 'statefulset/shoal-server', '--replicas=2')
    return '; '.join(seen)


def over_tls(service, name):
    """The service was encrypted before, and so is the job."""
    del name
    for role in METRICS:
        for pod in service.pods(role):
            if service.metric('shoal_tls_certificate_expiry_timestamp_seconds{kind="identity"}',
                              pod, role) < time.time():
                raise AssertionError(f'{pod} has no certificate')
    return 'five pods and `shoal train` have certificates'


servers_scaled.steps, servers_scaled.cluster = MORE_STEPS, {'elastic': True}
over_tls.before = Service.encrypt
SCENES = (nothing, same_servers, worker_deleted, coordinator_killed, coordinator_deleted,
          coordinator_rolled, workers_rolled, trainer_killed, server_deleted, server_stopped,
          servers_scaled, over_tls)


def play(service, scenes):
    wanted = {}  # by the number of steps
    for scene in scenes:
        steps = getattr(scene, 'steps', STEPS)
        if steps not in wanted and scene is not nothing:
            wanted[steps] = train(service, nothing, f'nothing-{steps}', steps)
        name = scene.__name__.replace('_', '-')
        found = train(service, scene, name, steps)
        if found != wanted.setdefault(steps, found):
            raise AssertionError(f'{name}: the hash of the undisturbed job is {wanted[steps]}')


def train(service, scene, name, steps):
    """A job of that name, in which that happens; returns its hash."""
    start = time.monotonic()
    getattr(scene, 'before', lambda service: None)(service)
    service.submit(name, steps, **getattr(scene, 'cluster', {}))
    service.wait_for_step(name, 30)
    seen = scene(service, name)
    found = service.finish(name)
    print(f'{name}: {seen}; {found} after {time.monotonic() - start:.0f} s', flush=True)
    service.wait_until_whole()
    return found


def main():
    programs, names = pathlib.Path(sys.argv[1]), sys.argv[2:]
    scenes = processes.chosen(SCENES, names)
    if os.getuid() != 0:
        processes.skip('a node takes root')
    with tempfile.TemporaryDirectory(prefix='shoal-kubernetes-') as folder:
        make_images(pathlib.Path(folder), programs)
        with Node(folder, programs) as node:
            service = Service(node)
            try:
                service.start()
                play(service, scenes)
            except BaseException:
                print(service.tell(), flush=True)
                raise
    print(f'{len(scenes)} jobs end with the hash of an undisturbed one')
    return 0


if __name__ == '__main__':
    sys.exit(main())
