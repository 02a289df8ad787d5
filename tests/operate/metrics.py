#!/usr/bin/env python3
"""Part 3: what every program serves in a real run: promtool has nothing to say of it, every name is
in docs/metrics.md and every name there is served, names and types keep to what is said there, and
what is not known before the first step is not there. Their logs are JSON, each line with who writes
it and of what job and step.
"""

import json
import re
import subprocess
import sys
import tempfile

import processes

sys.path.insert(0, str(processes.ROOT / 'dashboards'))
import check  # pylint: disable=wrong-import-position

PROMTOOL = processes.DEBIAN / 'usr/bin/promtool'
STEPS = 10
MAX_SERIES = 150  # of a worker: at 1,024 of them a Prometheus still holds them with ease
UNITS = re.compile(r'_(seconds|bytes|ratio|total|info)(_total)?$')
# Not there before a step, a checkpoint or a job says what they are.
KNOWN_LATER = re.compile(r'^shoal_(train_(step|target_steps|(\w+_)?loss|grad_norm|learning_rate|'
                         r'\w+_ratio|\w+_timestamp_seconds)|checkpoint_(last|filesystem)_\w+|'
                         r'job_\w+|worker_peak_flops|ps_partitions|client_\w+_duration_seconds)$')
# Documented, and in no run of this test: it has no GPU, RDMA or pipeline.
ELSEWHERE = re.compile(r'^shoal_(\w+_gpu_ranges_total|worker_(device|stage|collective)\w+|'
                       r'verbs_errors_total|ps_transport_fallbacks_total)$')
# Numbers without a unit.
BARE = re.compile(r'_(loss|norm|rate|depth|clients|version|members|partitions|term|leads|state|'
                  r'steps?|flops)$')


def findings_of(name, text, known):
    lint = subprocess.run([PROMTOOL, 'check', 'metrics'], input=text, capture_output=True,
                          text=True, check=False)
    if lint.returncode != 0:
        yield f'{name}: promtool: {lint.stdout}{lint.stderr}'
    types = dict(re.findall(r'^# TYPE (\S+) (\S+)$', text, re.MULTILINE))
    for metric, kind in types.items():
        if not metric.startswith('shoal_'):
            continue
        if metric not in known:
            yield f'{name}: {metric} is not in docs/metrics.md'
        if (kind == 'counter') != metric.endswith('_total'):
            yield f'{name}: {metric} is a {kind}'
        if not UNITS.search(metric) and not BARE.search(metric):
            yield f'{name}: {metric} has no unit'
    series = sum(not line.startswith('#') for line in text.split('\n') if line)
    if name.startswith('worker') and series > MAX_SERIES:
        yield f'{name}: {series} series, at most {MAX_SERIES}'


def findings_of_log(name, text):
    role, _, index = name.partition('-')
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            yield f'{name}: a line of its log is not JSON: {line}'
    for line in lines:
        if not {'ts', 'level', 'message'} <= line.keys() or line.get('role') != role:
            yield f'{name}: its log has {line}'
    registered = [number for number, line in enumerate(lines)
                  if line['message'].startswith('registered with')]
    if index and (not registered or
                  any(line.get('index') != int(index) for line in lines[registered[0]:])):
        yield f'{name}: its log does not say that it is {index}'
    steps = {line['step'] for line in lines if line.get('job') and 'step' in line}
    # The coordinator has nothing to say of a step that goes well.
    if not steps or (index and not set(range(1, STEPS + 1)) <= steps):
        yield f'{name}: its log is of steps {sorted(steps)}'


def names_in(texts):
    return {name for text in texts
            for name in re.findall(r'^# TYPE (\S+) ', text, re.MULTILINE)}


def main():
    known, findings = check.documented(), []
    with tempfile.TemporaryDirectory(prefix='shoal-metrics-') as folder:
        logs = ('--log-format', 'json', '--log-level', 'debug')
        with processes.Cluster(folder, tls=True, flags=logs) as cluster:
            before = {name: cluster.metrics(name) for name in cluster.ports}
            cluster.train(train={'steps': STEPS},
                          data={'validation': {'fraction': 0.05, 'every_steps': 5}})
            cluster.ended()
            after = {name: cluster.metrics(name) for name in cluster.ports}
            known_members = {each['labels']['instance']: each['targets']
                             for each in cluster.discovered()}
            if known_members != {name: [f'127.0.0.1:{cluster.ports[name]}']
                                 for name in cluster.members}:
                findings.append(f'/targets has {known_members}')
            if cluster.steps() != STEPS:
                findings.append(f'{cluster.steps()} steps were counted of {STEPS}')
            for name in cluster.ports:
                findings += findings_of_log(name, cluster.log(name))
    for name, text in [*before.items(), *after.items()]:
        findings += findings_of(name, text, known)
    early, late = names_in(before.values()), names_in(after.values())
    findings += [f'{name} is there before it is known' for name in early
                 if KNOWN_LATER.match(name)]
    findings += [f'{name} is in docs/metrics.md, and nobody serves it' for name in known - late
                 if not ELSEWHERE.match(name)]
    findings += [f'{name} is served, and said not to be' for name in late if ELSEWHERE.match(name)]
    findings = sorted(set(findings))
    print(*findings, sep='\n', end='\n' if findings else '')
    print(f'{len(before)} programs before and after a job: {len(findings)} findings')
    return 1 if findings else 0


if __name__ == '__main__':
    sys.exit(main())
