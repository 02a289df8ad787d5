#!/usr/bin/env python3
"""Part 3: what every program serves in a real run: promtool has nothing to say of it, every name is
in docs/metrics.md, and names and types keep to what is said there.
"""

import re
import subprocess
import sys
import tempfile

import processes

sys.path.insert(0, str(processes.ROOT / 'dashboards'))
import check  # pylint: disable=wrong-import-position

PROMTOOL = processes.DEBIAN / 'usr/bin/promtool'
MAX_SERIES = 150  # of a worker: at 1,024 of them a Prometheus still holds them with ease
UNITS = re.compile(r'_(seconds|bytes|ratio|total|info)(_total)?$')
# Numbers without a unit.
BARE = re.compile(r'_(loss|norm|rate|depth|clients|version|members|partitions|term|state|steps?|'
                  r'flops)$')


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


def main():
    known, findings = check.documented(), []
    with tempfile.TemporaryDirectory(prefix='shoal-metrics-') as folder:
        with processes.Cluster(folder, tls=True) as cluster:
            before = {name: cluster.metrics(name) for name in cluster.ports}
            cluster.train(train={'steps': 10})
            cluster.ended()
            after = {name: cluster.metrics(name) for name in cluster.ports}
            known_members = {each['labels']['instance']: each['targets']
                             for each in cluster.discovered()}
            if known_members != {name: [f'127.0.0.1:{cluster.ports[name]}']
                                 for name in cluster.members}:
                findings.append(f'/targets has {known_members}')
            if cluster.steps() != 10:
                findings.append(f'{cluster.steps()} steps were counted of 10')
    for name, text in [*before.items(), *after.items()]:
        findings += findings_of(name, text, known)
    findings = sorted(set(findings))
    print(*findings, sep='\n', end='\n' if findings else '')
    print(f'{len(before)} programs before and after a job: {len(findings)} findings')
    return 1 if findings else 0


if __name__ == '__main__':
    sys.exit(main())
