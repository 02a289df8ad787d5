"""Is everything up, of one version, and safe to lose?"""

from board import Board, Panel, Query, Row

LAST_CHECKPOINT = 'max by (shoal_job) (shoal_checkpoint_last_success_timestamp_seconds{JOB})'

NOW = Row('Now', (
    Panel('Processes that answer', 'Processes that Prometheus reads, by role.', 'short',
          (Query('sum by (component) (up{WHO, component!=""})', '{{component}}s'),), 'number', 6,
          decimals=0),
    Panel('That do not answer', 'Processes that Prometheus knows and cannot read. Good: zero; '
          'workers of a job that is over count too, until they are no longer named to it.',
          'short',
          (Query('count(up{WHO, component!=""} == 0) or on () vector(0)', 'processes'),),
          'number', 4, levels=((1, 'red'),), decimals=0),
    Panel('Lost in an hour', 'Members lost without a word: killed, hung or cut off. Those that '
          'took their leave do not count. Good: zero.', 'short',
          (Query('sum by (role) (increase(shoal_coordinator_members_lost_total{JOB}[1h]))',
                 '{{role}}s'),), 'number', 6, levels=((1, 'orange'),), decimals=0),
    Panel('Checkpoint age', 'Time since the newest checkpoint was complete. Good: below the '
          'interval of checkpoints while a job trains.', 's',
          (Query(f'time() - {LAST_CHECKPOINT}', '{{shoal_job}}'),), 'number', 4,
          levels=((1800, 'orange'), (7200, 'red'))),
    Panel('Versions', 'Versions of Shoal that run. Good: one.', 'short',
          (Query('count(count by (version) (shoal_build_info{WHO}))', 'versions'),), 'number', 4,
          levels=((2, 'red'),), decimals=0),
))

MEMBERS = Row('Members', (
    Panel('Processes that answer, by role', 'Good: flat lines. A dip is a restart. Of coordinators '
          'that stand by for each other one leads.', 'short',
          (Query('sum by (component) (up{WHO, component!=""})', '{{component}}s'),
           Query('sum(shoal_coordinator_leads{JOB})', 'leaders')), decimals=0),
    Panel('Members with a lease', 'What the coordinator counts on. Good: the same lines as of '
          'processes that answer; a member is missing here until it has registered.', 'short',
          (Query('sum by (role) (shoal_coordinator_members{JOB})', '{{role}}s'),), decimals=0),
    Panel('Oldest lease', 'Since the member that has not renewed its lease for longest did. Good: '
          'below a half of the lease (`--lease-seconds`, 10); a member is lost when it is over.',
          's', (Query('max by (role) (shoal_coordinator_oldest_lease_seconds{JOB})',
                      '{{role}}s'),)),
    Panel('State of the job', 'What the newest job does that had its turn. Good: training, with '
          'short checkpoints between.', 'short',
          (Query('sum by (state) (shoal_job_state{JOB}) > 0', '{{state}}'),), 'stack', high=1,
          decimals=0, width=6),
    Panel('Members lost', 'Members lost without a word, in five minutes. Good: zero.', 'short',
          (Query('sum by (role) (increase(shoal_coordinator_members_lost_total{JOB}[5m]))',
                 '{{role}}s'),), decimals=0, width=6),
    Panel('Starts', 'Processes that began anew, in five minutes. Good: zero outside an upgrade; '
          'one that comes back again and again is in a restart loop.', 'short',
          (Query('sum by (instance) (changes(process_start_time_seconds{WHO}[5m])) > 0 '
                 'or on () label_replace(vector(0), "instance", "none", "", "")',
                 '{{instance}}'),), decimals=0, width=6),
    Panel('Versions, by process', 'How many processes run each version. Good: one line; two during '
          'an upgrade, in which no job starts, since versions must agree.', 'short',
          (Query('count by (version) (shoal_build_info{WHO})', '{{version}}'),), decimals=0,
          width=6),
))

RESOURCES = Row('What processes take', (
    Panel('Memory, by process', 'Memory that is resident. Good: flat after the first step of a '
          'job.', 'bytes',
          (Query('process_resident_memory_bytes{WHO, component!=""}', '{{instance}}'),), width=6),
    Panel('Memory against its limit', 'Of the memory of its container, or where it is in none of '
          'its machine, the part that is resident. Good: below 0.8; the alert ShoalMemoryNearLimit '
          'fires at 0.92.', 'percentunit',
          (Query('process_resident_memory_bytes{WHO, component!=""} / shoal_memory_limit_bytes',
                 '{{instance}}'),), high=1, width=6),
    Panel('Cores, by process', 'CPU seconds a second. Good: near the threads of the process while '
          'a job trains; a server that uses all of its threads is worth another beside it.',
          'short', (Query('rate(process_cpu_seconds_total{WHO, component!=""}[RATE])',
                          '{{instance}}'),), width=6),
    Panel('File descriptors', 'Of those that a process may open, the part that is open. Good: '
          'below one half.', 'percentunit',
          (Query('process_open_fds{WHO, component!=""} / process_max_fds', '{{instance}}'),),
          high=1, width=6),
))

SAFETY = Row('Checkpoints and failures', (
    Panel('Room for checkpoints', 'On the disk of checkpoints after the last one, as the '
          'coordinator sees it. Good: flat; old checkpoints go as new ones come.', 'bytes',
          (Query('shoal_checkpoint_filesystem_avail_bytes{JOB}', 'available'),
           Query('shoal_checkpoint_filesystem_size_bytes{JOB}', 'all of it'))),
    Panel('Checkpoints written and failed', 'In fifteen minutes. Good: no failures; a failed one '
          'is tried again, mostly a full or slow disk.', 'short',
          (Query('increase(shoal_checkpoint_duration_seconds_count{JOB}[15m])', 'written'),
           Query('increase(shoal_checkpoint_failures_total{JOB}[15m])', 'failed'))),
    Panel('Steps lost', 'Attempts dropped, and steps stopped by numbers that are not finite, in '
          'five minutes. Good: zero.', 'short',
          (Query('increase(shoal_train_dropped_attempts_total{JOB}[5m])', 'attempts dropped'),
           Query('increase(shoal_train_nonfinite_steps_total{JOB}[5m])', 'not finite'))),
    Panel('Calls that failed at servers', 'Calls and pushes a second that ended otherwise than OK, '
          'by code. Good: zero outside a start and a recovery.', 'ops',
          (Query('sum by (code) (rate(shoal_ps_requests_total{WHO, code!="OK"}[RATE])) '
                 'or on () label_replace(vector(0), "code", "none", "", "")', '{{code}}'),)),
    Panel('Alerts', 'Alerts that fire, by name. Good: none.', 'short',
          (Query('count by (alertname) (ALERTS{alertstate="firing", shoal_job=~"$shoal_job"}) '
                 'or on () label_replace(vector(0), "alertname", "none", "", "")',
                 '{{alertname}}'),), decimals=0),
    Panel('Steps committed', 'Steps a minute: the one line that says that the service does what it '
          'is there for.', 'short',
          (Query('sum by (shoal_job) (rate(shoal_train_steps_total{JOB}[RATE])) * 60',
                 '{{shoal_job}}'),)),
))

ACCESS = Row('Certificates and refusals', (
    Panel("Certificates' time left", 'Until the first certificate of a process ends, and the first '
          'of a CA, with --tls. Good: more than a quarter of their life; new ones are taken within '
          'ten seconds.', 's',
          (Query('min by (kind) (shoal_tls_certificate_expiry_timestamp_seconds{WHO}) - time()',
                 '{{kind}}'),), log=True),
    Panel('Certificates taken', 'Times that a process found new files of certificates, in five '
          'minutes: good ones, used from then on, and bad ones, which are left. Good: no failure.',
          'short', (Query('sum by (result) (increase(shoal_tls_reloads_total{WHO}[5m]))',
                          '{{result}}'),), decimals=0),
    Panel('Refused', 'Connections and calls a second that were refused over gRPC: without a good '
          'certificate, with a wrong token, by a role that may not make them. Good: zero.', 'ops',
          (Query('sum by (reason) (rate(shoal_rpc_refused_total{WHO}[RATE]))', '{{reason}}'),)),
))

BOARD = Board('operations', 'Shoal: operations',
              'Is everything up, of one version, and safe to lose?',
              (NOW, MEMBERS, RESOURCES, SAFETY, ACCESS))
