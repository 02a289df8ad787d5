#!/usr/bin/env python3
"""Part 1: every overlay builds, keeps to the schemas of current Kubernetes, and to what is said of
it: Pod Security "restricted", probes, no token of the API server, one token of Shoal, bounded
memory.
"""

import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import yaml
from cloudcoil.models.cert_manager import v1 as cert_manager
from cloudcoil.models.prometheus_operator import v1 as prometheus_operator
from kubernetes_validate import utils as schemas

import processes

KUBERNETES = processes.ROOT / 'deploy/kubernetes'
SERVICES = ('overlays/small', 'overlays/cluster', 'overlays/test')
ROOTS = (*SERVICES, 'job', 'jobset')
VERSIONS = ('1.32', '1.33', '1.34', '1.35', '1.36', '1.37')
# Custom resources have no schema here; but for JobSet they have models.
CUSTOM = {'PodMonitor': prometheus_operator, 'PrometheusRule': prometheus_operator,
          'Certificate': cert_manager, 'Issuer': cert_manager, 'JobSet': None}
ENCRYPTED = ('overlays/cluster',)
UNITS = {'Mi': 2**20, 'Gi': 2**30}
# What the overlay `test` may change: Kubernetes 1.20 lacks it, or a single node has no storage that
# is shared.
TEST_MAY_CHANGE = re.compile(
    r'(^|/)(image|replicas|imagePullPolicy|startupProbe|livenessProbe|readinessProbe|apiVersion|'
    r'persistentVolumeClaim|hostPath|completionMode|enableServiceLinks|args|namespace|requests|'
    r'limits|volumeClaimTemplates|terminationGracePeriodSeconds)(/|$)|/volumes/3/')

schemas.schema_contents = functools.cache(schemas.schema_contents)  # megabytes, for each object


def build(root):
    """The objects of a kustomization, as kubectl would apply them."""
    kubectl = shutil.which('kubectl')
    if not kubectl:
        processes.skip('there is no kubectl')
    done = subprocess.run([kubectl, 'kustomize', str(KUBERNETES / root)], capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        sys.exit(f'{root}: {done.stderr}')
    return list(yaml.safe_load_all(done.stdout))


def bytes_of(quantity):
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


def pods_of(thing):
    """(name, pod template) of an object"""
    name = f'{thing["kind"]}/{thing["metadata"]["name"]}'
    if thing['kind'] == 'JobSet':
        for each in thing['spec']['replicatedJobs']:
            yield f'{name}/{each["name"]}', each['template']['spec']['template']
    elif 'template' in thing.get('spec', {}):
        yield name, thing['spec']['template']


def check_pod(name, template):
    """Pod Security "restricted", and what else all pods of ours have in common."""
    spec, role = template['spec'], template['metadata']['labels']['app.kubernetes.io/component']
    security = spec['securityContext']
    wanted = [
        (security.get('runAsNonRoot') is True and security.get('runAsUser', 0) > 0, 'runs as root'),
        (security.get('seccompProfile', {}).get('type') == 'RuntimeDefault', 'no seccomp profile'),
        (spec.get('automountServiceAccountToken') is False, 'has a token of the API server'),
        (spec.get('serviceAccountName', '').startswith('shoal-'), 'no service account of its own'),
        (all(volume.keys() & {'emptyDir', 'secret', 'persistentVolumeClaim', 'hostPath'}
             for volume in spec['volumes']), 'a volume of another kind'),
        ('shoal.dev/job' in template['metadata']['labels'], 'no label shoal.dev/job'),
    ]
    for container in spec['containers']:
        mine, resources = container['securityContext'], container['resources']
        arguments = ' '.join(container['args'])
        ports = {port['name']: port['containerPort'] for port in container.get('ports', [])}
        wanted += [
            (mine.get('allowPrivilegeEscalation') is False, 'may gain rights'),
            (mine.get('readOnlyRootFilesystem') is True, 'may write its root'),
            (mine.get('capabilities') == {'drop': ['ALL']}, 'has capabilities'),
            (resources['requests']['memory'] == resources['limits']['memory'],
             'may be killed for memory that it asked for'),
            ('cpu' not in resources['limits'], 'is throttled: a step waits for the slowest'),
            (bytes_of(resources['limits']['memory']) >= 2**26, 'has next to no memory'),
            ('--token-file /etc/shoal/token' in arguments, 'has no token'),
            (role == 'trainer' or f'--metrics-port {ports["metrics"]}' in arguments,
             'metrics are served on another port than is read'),
            (role == 'trainer' or 'startupProbe' in container, 'has no probe'),
        ]
    return [f'{name}: {what}' for holds, what in wanted if not holds]


def check_network(root, objects):
    """NetworkPolicies are of all pods, so that nothing comes in but what they name; those that
    listen have one of their own."""
    chosen = [thing['spec']['podSelector']['matchLabels'].items() for thing in objects
              if thing['kind'] == 'NetworkPolicy']
    for thing in objects:
        for name, template in pods_of(thing):
            listens = any('ports' in each for each in template['spec']['containers'])
            labels = template['metadata']['labels'].items()
            if sum(labels >= each for each in chosen) != 1 + listens:
                yield f'{root}: {name}: its NetworkPolicies are not two, or one where it is silent'


def check_schemas(root, objects):
    plain = [thing for thing in objects if thing['kind'] not in CUSTOM]
    for thing in objects:  # a JobSet's jobs are Jobs
        if thing['kind'] == 'JobSet':
            plain += [{'apiVersion': 'batch/v1', 'kind': 'Job', 'metadata': {'name': each['name']},
                       'spec': each['template']['spec']}
                      for each in thing['spec']['replicatedJobs']]
    for thing in plain:
        for version in VERSIONS:
            try:
                schemas.validate(thing, version, strict=True)
            except schemas.ValidationError as error:
                path = '/'.join(map(str, error.path))
                yield (f'{root}: {thing["kind"]} {thing["metadata"]["name"]} against {version}: '
                       f'{path}: {error.message}')
            except schemas.SchemaNotFoundError as error:
                yield f'{root}: {error.message}'


def check_custom(root, objects):
    """What the models of custom resources read is all that was written."""
    for thing in objects:
        models = CUSTOM.get(thing['kind'])
        if not models:
            continue
        model = getattr(models, thing['kind'])
        read = model.model_validate(thing).model_dump(mode='json', by_alias=True, exclude_none=True)
        lost = dict(leaves(thing)).keys() - dict(leaves(read)).keys()
        for path in sorted(lost):
            yield f'{root}: {thing["kind"]} {thing["metadata"]["name"]} knows no {path}'


def check_tls(root, objects):
    """Every pod has the certificate of its own role, and cert-manager makes it."""
    made = {thing['spec']['secretName']: thing['spec'].get('uris') for thing in objects
            if thing['kind'] == 'Certificate'}
    for thing in objects:
        for name, template in pods_of(thing):
            role = template['metadata']['labels']['app.kubernetes.io/component']
            role = 'client' if role == 'trainer' else role
            secrets = {volume['name']: volume['secret']['secretName']
                       for volume in template['spec']['volumes'] if 'secret' in volume}
            container = template['spec']['containers'][0]
            mounts = {mount['mountPath']: mount for mount in container['volumeMounts']}
            folder = {each['name']: each.get('value')
                      for each in container.get('env', [])}.get('SHOAL_TLS')
            mount = mounts.get(folder, {})
            if secrets.get(mount.get('name')) != f'shoal-{role}-tls' or 'subPath' in mount:
                yield f'{root}: {name}: has not the certificate of a {role}'
            if made.get(f'shoal-{role}-tls') != [
                    f'spiffe://shoal.local/ns/{thing["metadata"]["namespace"]}/sa/shoal-{role}']:
                yield f'{root}: {name}: nobody makes its certificate'


def build_upon(folder, **kustomization):
    """The objects of a kustomization of somebody's own, in `folder`, upon those here."""
    base = os.path.relpath(KUBERNETES, folder.resolve())
    for kind in ('resources', 'components'):
        kustomization[kind] = [f'{base}/{name}' for name in kustomization.get(kind, [])]
    (folder / 'kustomization.yaml').write_text(yaml.safe_dump(kustomization), encoding='utf-8')
    return build(folder)


def check_jobs_tls(folder):
    """Jobs and a JobSet have certificates too."""
    objects = build_upon(folder, namespace='shoal', resources=['base', 'job', 'jobset'],
                         components=['components/tls', 'components/tls-cert-manager'])
    names = [name for thing in objects for name, _ in pods_of(thing)]
    if len(names) != 8:  # two StatefulSets, two Jobs, four of a JobSet
        yield f'TLS of jobs: {names} have pods'
    for thing in objects:
        for name, template in pods_of(thing):
            yield from (f'TLS of jobs: {each}' for each in check_pod(name, template))
    yield from check_tls('TLS of jobs', objects)
    yield from check_network('TLS of jobs', objects)
    yield from check_schemas('TLS of jobs', objects)


def check_standby(folder):
    """Two coordinators have one state, and everybody names each of them as it names itself."""
    components = ['components/standby', 'components/tls', 'components/tls-cert-manager']
    built = [build_upon(folder, namespace='shoal', resources=['base', 'workers', 'job'],
                        components=order) for order in (components, components[::-1])]
    if sorted(dict(leaves(built[0])).values(), key=str) != sorted(dict(leaves(built[1])).values(),
                                                                  key=str):
        yield 'standby: what comes of it depends on the order of components'
    objects = {(thing['kind'], thing['metadata']['name']): thing for thing in built[0]}
    coordinators = objects['StatefulSet', 'shoal-coordinator']['spec']
    service = objects['Service', coordinators['serviceName']]['spec']
    if service.get('clusterIP') != 'None' or not service.get('publishNotReadyAddresses'):
        yield 'standby: pods of coordinators have no names'
    container = coordinators['template']['spec']['containers'][0]
    flags = dict(zip(container['args'], container['args'][1:]))
    variables = {each['name']: each.get('valueFrom') for each in container['env']}
    mounted = {each['mountPath'] for each in container['volumeMounts']}
    if (variables.get('SHOAL_STATE') != {'configMapKeyRef': {'name': 'shoal-etcd', 'key': 'state'}}
            or flags['--state'] != '$(SHOAL_STATE)' or flags['--etcd-tls'] not in mounted
            or 'volumeClaimTemplates' in coordinators or '/state' in mounted):
        yield 'standby: the state is not in etcd'
    names = [flags['--advertise'].replace('$(POD_NAME)', f'shoal-coordinator-{ordinal}')
             for ordinal in range(coordinators['replicas'])]
    port = service['ports'][0]['port']
    if names != [f'shoal-coordinator-{n}.{coordinators["serviceName"]}:{port}' for n in (0, 1)]:
        yield f'standby: coordinators say that they are at {names}'
    for thing in built[0]:
        for name, template in pods_of(thing):
            yield from (f'standby: {each}' for each in check_pod(name, template))
            arguments = template['spec']['containers'][0]['args']
            others = [flag.removeprefix('cluster.coordinator=').split(',')
                      for flag in arguments if flag.endswith(f':{port}')]
            if template is not coordinators['template'] and others != [names]:
                yield f'standby: {name} names {others}'
    yield from check_tls('standby', built[0])
    yield from check_network('standby', built[0])
    yield from check_schemas('standby', built[0])


def check_plan(folder):
    """What `shoal plan --kubernetes` prints is a patch of the service, and says what the job asks
    for."""
    processes.make_model(folder)
    processes.write_job(folder / 'job.yaml',
                        cluster={'coordinator': 'set:1', 'servers': 3, 'workers': 5})
    planned = processes.shoal('plan', 'job.yaml', '--kubernetes', cwd=folder)
    (folder / 'plan.yaml').write_text(planned, encoding='utf-8')
    objects = build_upon(folder, resources=['overlays/small'], patches=[{'path': 'plan.yaml'}])
    for thing in objects:
        for name, template in pods_of(thing):
            yield from (f'plan: {each}' for each in check_pod(name, template))
    replicas = {thing['metadata']['name']: thing['spec']['replicas'] for thing in objects
                if 'replicas' in thing.get('spec', {})}
    if replicas != {'shoal-coordinator': 1, 'shoal-server': 3, 'shoal-worker': 5}:
        yield f'plan: replicas are {replicas}'


def leaves(thing, path=''):
    """{path: value} of all that an object says"""
    if isinstance(thing, dict):
        for key, value in thing.items():
            yield from leaves(value, f'{path}/{key}')
    elif isinstance(thing, list):
        for at, value in enumerate(thing):
            yield from leaves(value, f'{path}/{at}')
    else:
        yield path, thing


def check_test_overlay(test, small):
    """The overlay of the tests is the small one but for what TEST_MAY_CHANGE lists."""
    def keyed(objects):
        return {(thing['kind'], thing['metadata']['name']): dict(leaves(thing))
                for thing in objects}
    ours, theirs = keyed(test), keyed(small)
    findings = []
    for key in sorted(set(ours) & set(theirs)):
        for path in sorted(set(ours[key]) | set(theirs[key])):
            if ours[key].get(path) != theirs[key].get(path) and not TEST_MAY_CHANGE.search(path):
                findings.append(f'overlays/test: {key} differs at {path}')
    return findings


def main():
    findings, count = [], 0
    built = {root: build(root) for root in ROOTS}
    with tempfile.TemporaryDirectory() as folder:
        for root, objects in built.items():
            count += len(objects)
            for thing in objects:
                for name, template in pods_of(thing):
                    findings += [f'{root}: {each}' for each in check_pod(name, template)]
            findings += check_custom(root, objects)
            findings += check_tls(root, objects) if root in ENCRYPTED else []
            findings += check_network(root, objects) if root in SERVICES else []
            if root != 'overlays/test':  # Kubernetes 1.20 has no schema here
                findings += check_schemas(root, objects)
        for check in (check_plan, check_jobs_tls, check_standby):
            mine = pathlib.Path(folder) / check.__name__
            mine.mkdir()
            findings += check(mine)
    findings += check_test_overlay(built['overlays/test'], built['overlays/small'])
    print(*findings, sep='\n', end='\n' if findings else '')
    print(f'{len(ROOTS)} kustomizations, {count} objects, Kubernetes {VERSIONS[0]} to '
          f'{VERSIONS[-1]}: {len(findings)} findings')
    return 1 if findings else 0


if __name__ == '__main__':
    sys.exit(main())
