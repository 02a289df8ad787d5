"""Do the servers hold the model evenly, and do they keep up?"""

from board import Board, Panel, Query, Row, quantiles

HELD = 'sum by (instance) (shoal_ps_resident_bytes{WHO})'
PUSHES = 'shoal_ps_request_duration_seconds_bucket{WHO, op="push"}'
CALLS = 'shoal_ps_request_duration_seconds_bucket{WHO, op!="push"}'

NOW = Row('Now', (
    Panel('Servers', 'Servers with a lease. Good: as many as the job asks for.', 'short',
          (Query('shoal_coordinator_members{JOB, role="server"}', '{{shoal_job}}'),), 'number', 4,
          decimals=0),
    Panel('Memory held', 'Weights, gradients, master weights and moments of all servers.', 'bytes',
          (Query('sum by (shoal_job) (shoal_ps_resident_bytes{WHO})', '{{shoal_job}}'),),
          'number', 4),
    Panel('Fullest against the mean', 'Bytes of the fullest server over the mean. Good: below 1.1; '
          'a server that holds more also gets more traffic.', 'short',
          (Query(f'max({HELD}) / avg({HELD})', 'fullest / mean'),), 'number', 4, low=None,
          levels=((1.1, 'orange'), (1.2, 'red')), decimals=2),
    Panel('Gradients taken', 'Bytes of gradients that servers take a second.', 'Bps',
          (Query('sum by (shoal_job) (rate(shoal_ps_push_bytes_total{WHO}[RATE]))',
                 '{{shoal_job}}'),), 'number', 4),
    Panel('Clients', 'Workers connected, at the server with the fewest and the one with the most. '
          'Good: every worker at every server while a job runs.', 'short',
          (Query('min(shoal_ps_clients{WHO})', 'fewest'),
           Query('max(shoal_ps_clients{WHO})', 'most')), 'number', 4, decimals=0),
    Panel('Versions apart', 'Highest published version less the lowest. Good: 0 or, between the '
          'commits of two servers, 1; more where steps are shorter than what lies between two '
          'readings.', 'short',
          (Query('max by (shoal_job) (shoal_ps_param_version{WHO}) '
                 '- min by (shoal_job) (shoal_ps_param_version{WHO})', '{{shoal_job}}'),),
          'number', 4, levels=((2, 'orange'),), decimals=0),
))

SHARDS = Row('Shards', (
    Panel('Published version', 'Version of the weights that each server publishes: the step it '
          'stands at. Good: one line. A fall is a restore from a checkpoint.', 'short',
          (Query('shoal_ps_param_version{WHO}', '{{instance}}'),), width=6),
    Panel('Bytes by server', 'What each server holds now. Good: bars of one length.', 'bytes',
          (Query(HELD, '{{instance}}'),), 'bars', width=6),
    Panel('Partitions by server', 'How many partitions each server holds now; none between jobs. '
          'Good: alike, where their bytes are.', 'short',
          (Query('sum by (instance) (shoal_ps_partitions{WHO})', '{{instance}}'),), 'bars',
          decimals=0, width=6),
    Panel('Bytes by kind', 'param: what workers read; grad: sums of gradients; master: the weights '
          'that the optimizer works on; moment: its state. Set when a job is loaded.', 'bytes',
          (Query('sum by (kind) (shoal_ps_resident_bytes{WHO})', '{{kind}}'),), 'stack', width=6),
))

PUSH = Row('Pushes', (
    Panel('Gradients taken, by server', 'Bytes of gradients a second. Good: all alike.', 'Bps',
          (Query('sum by (instance) (rate(shoal_ps_push_bytes_total{WHO}[RATE]))',
                 '{{instance}}'),)),
    Panel('Time to add a gradient', 'From taking a push to its sum, for one partition. Good: p99 '
          'within a few times the median. It grows with partitions, and where cores are short.',
          's', quantiles(PUSHES, '', ((0.5, 'median'), (0.9, 'p90'), (0.99, 'p99')))),
    Panel('Pushes that wait', 'Pushes that have arrived and wait for a thread. Good: near zero; a '
          'queue that stays means that the server has too few cores.', 'short',
          (Query('shoal_ps_queue_depth{WHO}', '{{instance}}'),), decimals=0),
    Panel('Pushes, and those out of the ordinary', 'Partitions added a second; recognised as '
          'applied before (sent again after a broken connection); found without a doorbell; late, '
          'for an attempt that is over; malformed. Good: all but the first are zero.', 'ops',
          (Query('sum(rate(shoal_ps_requests_total{WHO, op="push", code="OK"}[RATE]))', 'added'),
           Query('sum(rate(shoal_ps_duplicate_pushes_total{WHO}[RATE]))', 'duplicate'),
           Query('sum(rate(shoal_ps_pushes_without_doorbell_total{WHO}[RATE]))',
                 'without doorbell'),
           Query('sum(rate(shoal_ps_requests_total{WHO, op="push", '
                 'code="FAILED_PRECONDITION"}[RATE]))', 'late'),
           Query('sum(rate(shoal_ps_malformed_pushes_total{WHO}[RATE]))', 'malformed'))),
    Panel('Commits that wait for a checkpoint', 'Part of the time that commits waited for '
          'partitions not yet written. Good: zero; else the checkpoint folder is slow.',
          'percentunit',
          (Query('rate(shoal_checkpoint_commit_wait_seconds_total{WHO}[RATE])', '{{instance}}'),)),
    Panel('Clients by server', 'Workers connected to each server. Good: flat; a fall is a worker '
          'that left or lost its connection.', 'short',
          (Query('shoal_ps_clients{WHO}', '{{instance}}'),), decimals=0),
))

CONTROL = Row('Calls', (
    Panel('Control calls', 'Calls a second by operation: a step has one prepare and one commit at '
          'each server.', 'ops',
          (Query('sum by (op) (rate(shoal_ps_requests_total{WHO, op!="push"}[RATE])) > 0',
                 '{{op}}'),)),
    Panel('Control calls, 99th percentile', 'How long calls take, by operation. commit is the '
          'optimizer; configure loads a model; checkpoint writes its shard.', 's',
          quantiles(CALLS, 'op', ((0.99, ''),))),
    Panel('Calls that failed', 'Calls and pushes a second that ended otherwise than OK, by '
          'operation and code. Good: zero outside the start of a job and a recovery.', 'ops',
          (Query('sum by (op, code) (rate(shoal_ps_requests_total{WHO, code!="OK"}[RATE])) '
                 'or on () label_replace(vector(0), "code", "none", "", "")', '{{op}} {{code}}'),)),
))

BOARD = Board('servers', 'Shoal: servers and shards',
              'Do the servers hold the model evenly, and do they keep up?',
              (NOW, SHARDS, PUSH, CONTROL))
