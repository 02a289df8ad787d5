#!/usr/bin/env python3
"""Writes the boards from boards/, and the alerts as Kubernetes' Prometheus operator takes them.

  generate.py [--check]      --check: writes nothing, fails where a file is not what it would be

docs/monitoring.md says how to install what it needs (requirements.txt).
"""

import argparse
import json
import pathlib
import sys

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder

import board
from boards import operations, servers, training, transports

HERE = pathlib.Path(__file__).resolve().parent
BOARDS = (training.BOARD, servers.BOARD, transports.BOARD, operations.BOARD)
HEAD = '# Made by generate.py from alerts.yaml.\n'


def numbered(built):
    """Numbers the panels, which links to a panel go by."""
    dashboard = json.loads(json.dumps(built, cls=JSONEncoder))
    number = 0
    for panel in dashboard['panels']:
        for each in [panel] + panel.get('panels', []):
            number += 1
            each['id'] = number
    return dashboard


def prometheus_rule():
    groups = yaml.safe_load((HERE / 'alerts.yaml').read_text(encoding='utf-8'))
    rule = {'apiVersion': 'monitoring.coreos.com/v1', 'kind': 'PrometheusRule',
            'metadata': {'name': 'shoal', 'labels': {'app.kubernetes.io/name': 'shoal'}},
            'spec': groups}
    return HEAD + yaml.safe_dump(rule, sort_keys=False, width=100)


def files():
    """(path, text) of all that is generated"""
    for each in BOARDS:
        text = json.dumps(numbered(board.build(each)), indent=1, sort_keys=True)
        yield HERE / f'{each.name}.json', text + '\n'
    yield HERE / 'prometheus-rule.yaml', prometheus_rule()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--check', action='store_true')
    check = parser.parse_args().check
    stale = []
    for path, text in files():
        if check:
            if not path.exists() or path.read_text(encoding='utf-8') != text:
                stale.append(path.name)
        else:
            path.write_text(text, encoding='utf-8')
    if stale:
        sys.exit(f'not what generate.py makes: {", ".join(stale)}; run dashboards/generate.py')


if __name__ == '__main__':
    main()
