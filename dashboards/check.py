#!/usr/bin/env python3
"""What must hold of the boards and the alerts, checked without Grafana and Prometheus.

  check.py [BOARD.json...]      (default: all here, and alerts.yaml)

  metric       every metric is in docs/metrics.md, and each there is on a board or in UNSHOWN
  panel        title, description that says what is good, unit, a legend for every query
  query        parses; its data source and its job are chosen at the top of the board; the window
               of a rate is $__rate_interval, or as long as the title says
  board        at least 8 panels, no two of one title, no two that overlap, variables, links
  alert        severity, summary, description, a section in docs/runbook.md, a test that fires

Prints one line a finding; exits with 1 if there is one.
"""

import json
import pathlib
import re
import sys

import promql_parser
import yaml

HERE = pathlib.Path(__file__).resolve().parent
DOCS = HERE.parent / 'docs'
MIN_PANELS = 8
SHORTEST_DESCRIPTION = 30
VARIABLES = {'datasource', 'shoal_job', 'instance'}
NAME = r'\b(?:shoal|process)_[a-z0-9_]+'
# Of Prometheus itself.
FOREIGN = {'up', 'ALERTS'}
# Documented, and on no board: why.
UNSHOWN = {
    'shoal_worker_microbatches_total': 'throughput is shown in tokens of committed steps',
    'shoal_worker_tokens_total': 'as above; this one counts attempts that were dropped, too',
    'shoal_worker_target_tokens_total': 'as above',
    'shoal_worker_collectives_total': 'their bytes are shown',
    'shoal_ps_transport_fallbacks_total': 'shown as workers count them, for stages too',
    'shoal_ps_gpu_ranges_total': 'shown as workers count them',
    'shoal_train_flops_total': 'shoal_train_mfu_ratio is shown, which is made of it',
    'shoal_checkpoint_bytes_total': 'the room that they take is shown',
    'shoal_coordinator_refused_versions_total': 'for alerts: versions by process are shown',
    'shoal_coordinator_term': 'starts of processes are shown',
    'shoal_train_start_timestamp_seconds': 'for alerts: how long a job has trained',
}
WORDS = {'$__rate_interval': '1m', '$__range': '1h', '$shoal_job': '.+', '$instance': '.+'}


def substitute(expr):
    for word, text in WORDS.items():
        expr = expr.replace(word, text)
    return expr


def documented():
    """The metrics of docs/metrics.md, from the first cells of its tables."""
    names = set()
    for line in (DOCS / 'metrics.md').read_text(encoding='utf-8').split('\n'):
        cell = line.split('|')[1] if line.startswith('|') else line
        names.update(re.findall(NAME, cell))
    return names


def plain(name):
    """The metric that a series of a histogram belongs to."""
    return re.sub(r'_(?:bucket|count|sum)$', '', name)


def selectors(node):
    """All vector selectors below a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
        return
    for field in ('expr', 'lhs', 'rhs', 'param', 'vector_selector', 'vs'):
        below = getattr(node, field, None)
        if below is not None and not isinstance(below, (str, int, float)):
            yield from selectors(below)
    func_args = getattr(node, 'args', None)
    for argument in func_args if isinstance(func_args, list) else []:
        yield from selectors(argument)


def metrics_of(expr):
    return {selector.name for selector in selectors(promql_parser.parse(expr)) if selector.name}


def check_query(panel, target, known):
    expr = target['expr']
    try:
        parsed = promql_parser.parse(substitute(expr))
    except ValueError as error:
        yield f'query: does not parse: {expr}: {error}'
        return
    found = list(selectors(parsed))
    if not found:
        yield f'query: names no metric: {expr}'
    for selector in found:
        if plain(selector.name) not in known | FOREIGN and selector.name not in known:
            yield f'metric: {selector.name} is not in docs/metrics.md'
    if 'shoal_job=~"$shoal_job"' not in expr:
        yield f'query: is not of the chosen job: {expr}'
    for function, window in re.findall(r'\b(rate|increase|irate)\(.*?\[([^]]+)\]', expr):
        if function == 'rate' and window != '$__rate_interval':
            yield f'query: rate over {window}, not $__rate_interval: {expr}'
        if function == 'irate':
            yield f'query: irate forgets what is between two points: {expr}'
    if not target.get('legendFormat'):
        yield f'panel: a query without a legend: {expr}'


def check_panel(panel, known):
    description = panel.get('description') or ''
    if not panel.get('title'):
        yield 'panel: no title'
    if len(description) < SHORTEST_DESCRIPTION or not description.endswith('.'):
        yield 'panel: its description is no sentence'
    if not panel['fieldConfig']['defaults'].get('unit'):
        yield 'panel: no unit'
    if panel['datasource']['uid'] != '${datasource}':
        yield 'panel: its data source is fixed'
    if not panel.get('targets'):
        yield 'panel: no query'
    for target in panel.get('targets', []):
        yield from check_query(panel, target, known)


def panels_of(board):
    for panel in board['panels']:
        if panel['type'] != 'row':
            yield panel
        yield from panel.get('panels') or []


def overlap(one, other):
    def apart(start, length):
        return (one[start] + one[length] <= other[start] or
                other[start] + other[length] <= one[start])
    return not apart('x', 'w') and not apart('y', 'h')


def check_board(board, known):
    panels = list(panels_of(board))
    if len(panels) < MIN_PANELS:
        yield f'board: {len(panels)} panels, at least {MIN_PANELS}'
    titles = [panel['title'] for panel in panels]
    for title in sorted({title for title in titles if titles.count(title) > 1}):
        yield f'board: two panels are called {title}'
    names = {variable['name'] for variable in board['templating']['list']}
    if names != VARIABLES:
        yield f'board: its variables are {sorted(names)}'
    if not board.get('links') or not board.get('description') or not board.get('uid'):
        yield 'board: it has no link to the others, no description or no uid'
    shown = [panel for panel in board['panels'] if panel['type'] != 'row']
    for at, one in enumerate(shown):
        for other in shown[at + 1:]:
            if overlap(one['gridPos'], other['gridPos']):
                yield f'board: {one["title"]} lies over {other["title"]}'
        if one['gridPos']['x'] + one['gridPos']['w'] > 24:
            yield f'board: {one["title"]} is out of the grid'
    for panel in panels:
        for finding in check_panel(panel, known):
            yield f'{panel["title"]}: {finding}'


def check_alerts(known):
    groups = yaml.safe_load((HERE / 'alerts.yaml').read_text(encoding='utf-8'))['groups']
    tests = yaml.safe_load((HERE / 'alerts_test.yaml').read_text(encoding='utf-8'))['tests']
    cases = [case for test in tests for case in test.get('alert_rule_test', [])]
    runbook = DOCS / 'runbook.md'
    pages = runbook.read_text(encoding='utf-8') if runbook.exists() else ''
    rules = [rule for group in groups for rule in group['rules']]
    recorded = {rule['record'] for rule in rules if 'record' in rule}
    for rule in rules:
        name = rule.get('alert') or rule['record']
        for metric in metrics_of(rule['expr']) - recorded:
            if plain(metric) not in known | FOREIGN:
                yield f'{name}: metric: {metric} is not in docs/metrics.md'
        if 'alert' not in rule:
            continue
        annotations = rule.get('annotations', {})
        for key in ('summary', 'description', 'runbook_url'):
            if key not in annotations:
                yield f'{name}: alert: no {key}'
        if rule.get('labels', {}).get('severity') not in ('critical', 'warning'):
            yield f'{name}: alert: its severity is neither critical nor warning'
        if annotations.get('runbook_url') != f'docs/runbook.md#{name.lower()}':
            yield f'{name}: alert: its runbook_url is not of its name'
        if not re.search(rf'^## {name}$', pages, re.MULTILINE):
            yield f'{name}: alert: no section in docs/runbook.md'
        mine = [case for case in cases if case['alertname'] == name]
        if not any(case['exp_alerts'] for case in mine):
            yield f'{name}: alert: no test in which it fires'
        if all(case['exp_alerts'] for case in mine):
            yield f'{name}: alert: no test in which it is silent'


def main():
    paths = [pathlib.Path(path) for path in sys.argv[1:]] or sorted(HERE.glob('*.json'))
    known = documented()
    findings, shown, count = [], set(), 0
    for path in paths:
        board = json.loads(path.read_text(encoding='utf-8'))
        findings += [f'{path.name}: {finding}' for finding in check_board(board, known)]
        for panel in panels_of(board):
            count += 1
            for target in panel['targets']:
                shown.update(map(plain, re.findall(NAME, target['expr'])))
    if not sys.argv[1:]:
        findings += [f'alerts.yaml: {finding}' for finding in check_alerts(known)]
        for name in sorted(known - shown - UNSHOWN.keys()):
            findings.append(f'docs/metrics.md: {name} is on no board (check.py has a list)')
        for name in sorted(UNSHOWN.keys() & shown):
            findings.append(f'check.py: {name} is on a board, and said to be on none')
        for name in sorted(UNSHOWN.keys() - known):
            findings.append(f'check.py: {name} is not in docs/metrics.md')
    print(*findings, sep='\n' if findings else '')
    print(f'{len(paths)} boards, {count} panels, {len(findings)} findings', file=sys.stderr)
    return 1 if findings else 0


if __name__ == '__main__':
    sys.exit(main())
