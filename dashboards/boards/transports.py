"""Which way do tensors go, how fast, and does it hold?"""

from board import Board, Panel, Query, Row, quantiles

NOW = Row('Now', (
    Panel('Weights read', 'Bytes of weights that workers read a second.', 'Bps',
          (Query('sum by (transport) (rate(shoal_client_get_bytes_total{WHO}[RATE]))',
                 '{{transport}}'),), 'number', 6),
    Panel('Gradients written', 'Bytes of gradients that workers write a second.', 'Bps',
          (Query('sum by (transport) (rate(shoal_client_push_bytes_total{WHO}[RATE]))',
                 '{{transport}}'),), 'number', 6),
    Panel('Not over the first choice', 'Connections that did not get the transport that the job '
          'prefers, in an hour. Good: zero.', 'short',
          (Query('sum(increase(shoal_client_fallbacks_total{WHO}[1h]))', 'connections'),),
          'number', 6, levels=((1, 'orange'),), decimals=0),
    Panel('Broken connections', 'Connections to servers that broke and were made again, in an '
          'hour. Good: zero without a restart.', 'short',
          (Query('sum(increase(shoal_client_reconnects_total{WHO}[1h]))', 'connections'),),
          'number', 6, levels=((1, 'orange'),), decimals=0),
))

TRAFFIC = Row('Traffic', (
    Panel('Weights read, by transport', 'Bytes a second over each transport. Good: all of it over '
          'the fastest that both ends have: shm on one host, RDMA between hosts.', 'Bps',
          (Query('sum by (transport) (rate(shoal_client_get_bytes_total{WHO}[RATE]))',
                 '{{transport}}'),), 'stack'),
    Panel('Gradients written, by transport', 'As it is written by workers. What servers take is on '
          'the board of servers; the two agree but for what is sent again.', 'Bps',
          (Query('sum by (transport) (rate(shoal_client_push_bytes_total{WHO}[RATE]))',
                 '{{transport}}'),), 'stack'),
    Panel('Weights read, by worker', 'Good: in proportion to the microbatches that each runs.',
          'Bps', (Query('sum by (instance) (rate(shoal_client_get_bytes_total{WHO}[RATE]))',
                        '{{instance}}'),
                  Query('sum(rate(shoal_client_backup_get_bytes_total{WHO}[RATE]))',
                        'of all, from backups'))),
    Panel('Gradients taken by servers, by transport', 'The other end of the writes: one-sided '
          'reads are seen by workers alone.', 'Bps',
          (Query('sum by (transport) (rate(shoal_ps_push_bytes_total{WHO}[RATE]))',
                 '{{transport}}'),), 'stack'),
    Panel('Time to read weights', 'Of one partition, by transport. It grows with partitions. Good: '
          'p99 within a few times the median.', 's',
          quantiles('shoal_client_get_duration_seconds_bucket{WHO}', 'transport',
                    ((0.5, 'median'), (0.99, 'p99')))),
    Panel('Time until gradients are taken', 'Of one partition, from sending it until the server '
          'says that it is in its sum, by transport. Good: p99 within a few times the median.',
          's', quantiles('shoal_client_push_duration_seconds_bucket{WHO}', 'transport',
                         ((0.5, 'median'), (0.99, 'p99')))),
    Panel('Time that workers wait for tensors', 'Part of the compute threads\' time spent waiting '
          'for weights, and for room to push gradients. Good: a few percent; more means that the '
          'network or the servers do not keep up.', 'percentunit',
          (Query('avg by (phase) (rate(shoal_worker_phase_seconds_total{WHO, '
                 'phase=~"get_wait|push_wait|layer_wait|transfer_wait|neighbour_wait"}[RATE]))',
                 '{{phase}}'),), 'stack', width=12),
    Panel('Barriers', 'Barriers of all workers at a layer a second, with '
          '`train.synchronization: layer` alone. Good: zero where training is on demand.', 'ops',
          (Query('sum(rate(shoal_client_barriers_total{WHO}[RATE]))', 'barriers'),), width=12),
))

HEALTH = Row('Does it hold?', (
    Panel('Connections made', 'Connections that servers made, in five minutes, by transport. Good: '
          'only at the start of a job and when a member comes back.', 'short',
          (Query('sum by (transport) (increase(shoal_ps_connections_total{WHO}[5m]))',
                 '{{transport}}'),), width=6, decimals=0),
    Panel('Fallbacks and switches', 'Connections over another than the first transport; servers '
          'reached over another transport than before, in five minutes. Good: zero.', 'short',
          (Query('sum(increase(shoal_client_fallbacks_total{WHO}[5m]))', 'fallbacks'),
           Query('sum(increase(shoal_client_transport_switches_total{WHO}[5m]))', 'switches')),
          width=6, decimals=0),
    Panel('Broken and made again', 'Connections to servers that broke and were made again, by '
          'worker, in five minutes. Good: zero without a restart.', 'short',
          (Query('sum by (instance) (increase(shoal_client_reconnects_total{WHO}[5m]))',
                 '{{instance}}'),), width=6, decimals=0),
    Panel('Sent or read again', 'Pushes sent again after a connection broke, those of them that '
          'had been applied, and partitions read again because another version was found, in five '
          'minutes. Good: zero outside a recovery.', 'short',
          (Query('sum(increase(shoal_client_resent_pushes_total{WHO}[5m]))', 'pushes sent again'),
           Query('sum(increase(shoal_client_duplicate_pushes_total{WHO}[5m]))',
                 'had been applied'),
           Query('sum(increase(shoal_client_rereads_total{WHO}[5m]))', 'partitions read again'),
           Query('sum(increase(shoal_client_backup_fallbacks_total{WHO}[5m]))',
                 'read from the primary instead of a backup')),
          width=6, decimals=0),
))

GPUS = Row('With GPUs, RDMA and pipelines', (
    Panel('Into and out of GPU memory', 'Bytes a second by direction and path. Good: gpu or '
          'direct; pinned takes a copy through the host.', 'Bps',
          (Query('sum by (direction, path) (rate(shoal_worker_device_bytes_total{WHO}[RATE]))',
                 '{{direction}} {{path}}'),)),
    Panel('GPU memory of the job', 'After the last step, of the fullest worker: what the job '
          'holds there, the most that it held, and what it may hold. Good: the peak stays below '
          'the budget.', 'bytes',
          (Query('max by (kind) (shoal_worker_device_memory_bytes{WHO})', '{{kind}}'),)),
    Panel('Between stages', 'Bytes a second of the messages between stages of a pipeline. Good: '
          'nccl or cuda_ipc on GPUs.', 'Bps',
          (Query('sum by (direction, path) (rate(shoal_worker_stage_bytes_total{WHO}[RATE]))',
                 '{{direction}} {{path}}'),)),
    Panel('Collectives', 'Bytes a second of all_gather and reduce_scatter, with '
          '`train.synchronization: layer` on GPUs.', 'Bps',
          (Query('sum by (operation) (rate(shoal_worker_collective_bytes_total{WHO}[RATE]))',
                 '{{operation}}'),)),
    Panel('GPU ranges by route', 'Ranges of GPU memory registered, by how RDMA reaches them. Good: '
          'dma_buf or peer_memory; refused ones go another way.', 'short',
          (Query('sum by (transport, route) (shoal_client_gpu_ranges_total{WHO})',
                 '{{transport}} {{route}}'),)),
    Panel('Transports left out', 'Times that a transport was left out for a while because it kept '
          'failing, in five minutes. Good: zero.', 'short',
          (Query('sum by (transport) (increase(shoal_client_transport_rests_total{WHO}[5m]))',
                 '{{transport}}'),)),
    Panel('Errors of RDMA devices', 'Operations that devices reported as failed, by kind, in five '
          'minutes. Good: zero; each costs a connection or a rail.', 'short',
          (Query('sum by (kind) (increase(shoal_verbs_errors_total{WHO}[5m]))', '{{kind}}'),)),
    Panel('Exchanges not over NCCL', 'Jobs in which a GPU met others over the servers or the host. '
          'Good: zero where NCCL is there.', 'short',
          (Query('sum(shoal_worker_exchange_fallbacks_total{WHO})', 'jobs'),)),
), collapsed=True)

BOARD = Board('transports', 'Shoal: transports',
              'Which way do tensors go, how fast, and does it hold?',
              (NOW, TRAFFIC, HEALTH, GPUS))
