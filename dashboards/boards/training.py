"""Is it learning, how fast, and what holds it up?"""

from board import Board, Panel, Query, Row

BUSY = 'rate(shoal_worker_phase_seconds_total{WHO, phase=~"data|forward|backward"}[RATE])'
LAST_CHECKPOINT = 'max by (shoal_job) (shoal_checkpoint_last_success_timestamp_seconds{JOB})'
LAST_STEP = 'max by (shoal_job) (shoal_train_last_step_timestamp_seconds{JOB})'
STEPS = 'shoal_train_step_duration_seconds_bucket{JOB}[RATE]'

NOW = Row('Now', (
    Panel('Steps of the job', 'Steps committed, as part of all that the job has. It should grow; '
          'after the loss of a server it falls back to the last checkpoint.', 'percentunit',
          (Query('shoal_train_step{JOB} / shoal_train_target_steps '
                 '* on (shoal_job) group_left (model) shoal_job_info', '{{shoal_job}} {{model}}'),),
          'number', 4, decimals=1),
    Panel('Time left', 'Steps that are left, at the speed of now. Good: it falls as fast as time '
          'passes. A validation or early stop is not foreseen.', 's',
          (Query('(shoal_train_target_steps{JOB} - shoal_train_step) / on (shoal_job) '
                 '(sum by (shoal_job) (rate(shoal_train_steps_total{JOB}[RATE])) > 0)',
                 '{{shoal_job}}'),), 'number', 3),
    Panel('Since the last step', 'Time since a step was committed. Good: less than a few step '
          'durations while a job trains. It grows when a job is over, too.', 's',
          (Query(f'time() - {LAST_STEP}', '{{shoal_job}}'),),
          'number', 3, levels=((60, 'orange'), (300, 'red'))),
    Panel('Tokens a second', 'Tokens of committed steps, of all workers together. Good: steady, '
          'and near what `shoal plan` predicts.', 'short',
          (Query('sum by (shoal_job) (rate(shoal_train_tokens_total{JOB}[RATE]))',
                 '{{shoal_job}}'),), 'number', 4),
    Panel('FLOPs utilization', 'Model FLOPs utilization of the last step: of what the workers\' '
          'devices compute at most, the part that training asked for. Higher is better; 30 to 50 % '
          'is usual on GPUs.', 'percentunit',
          (Query('shoal_train_mfu_ratio{JOB}', '{{shoal_job}}'),), 'number', 3, decimals=1),
    Panel('Checkpoint age', 'Time since the newest checkpoint was complete: what a lost server '
          'costs. Good: below the interval of checkpoints.', 's',
          (Query(f'time() - {LAST_CHECKPOINT}', '{{shoal_job}}'),),
          'number', 3, levels=((1800, 'orange'), (7200, 'red'))),
    Panel('Members', 'Servers and workers with a lease. Good: as many as the job asks for.',
          'short', (Query('shoal_coordinator_members{JOB}', '{{role}}s'),), 'number', 4,
          decimals=0),
))

LEARNING = Row('Learning', (
    Panel('Loss', 'Mean loss per target token of the last step, its mean over five minutes, and '
          'where the job has a validation that of the last one and the lowest. Good: the mean '
          'falls, then flattens. A validation that rises while the loss falls: too many passes.',
          'short',
          (Query('shoal_train_loss{JOB}', 'loss'),
           Query('avg_over_time(shoal_train_loss{JOB}[5m])', 'mean of 5 min'),
           Query('shoal_train_validation_loss{JOB}', 'validation'),
           Query('shoal_train_best_validation_loss{JOB}', 'lowest validation')), low=None),
    Panel('Gradient norm', 'Norm of the gradient before clipping, on a logarithmic axis. Good: '
          'within one order of magnitude. Spikes come before divergence.', 'short',
          (Query('shoal_train_grad_norm{JOB} > 0', 'norm'),), log=True),
    Panel('Learning rate', 'Of the last step: the schedule as it really ran.', 'sci',
          (Query('shoal_train_learning_rate{JOB} > 0', 'learning rate'),)),
))

SPEED = Row('Speed', (
    Panel('Throughput', 'Tokens a second of committed steps, all and those that loss is taken '
          'on. Good: steady; a dip is a checkpoint, a lost member or a straggler.', 'short',
          (Query('sum(rate(shoal_train_tokens_total{JOB}[RATE]))', 'tokens/s'),
           Query('sum(rate(shoal_train_target_tokens_total{JOB}[RATE]))', 'with loss')), width=6),
    Panel('Step duration', 'From handing a step out to its commit. Good: p99 close to the median.',
          's',
          tuple(Query(f'histogram_quantile({quantile}, sum by (le) (rate({STEPS})))', name)
                for quantile, name in ((0.5, 'median'), (0.99, 'p99'))), width=6),
    Panel('What steps wait for', 'The coordinator\'s view of a step: time by what it waited for, '
          'as part of the whole. Good: compute fills nearly all of it; prepare and commit are the '
          'servers\', plan is late plans and attempts that were dropped.', 'percentunit',
          (Query('sum by (phase) (rate(shoal_train_step_phase_seconds_total{JOB}[RATE])) '
                 '/ on () group_left () '
                 '(sum(rate(shoal_train_step_phase_seconds_total{JOB}[RATE])) > 0)',
                 '{{phase}}'),), 'stack', high=1, width=6),
    Panel('What devices compute', 'Floating-point operations a second that each worker\'s device '
          'computes at most, as measured when the job began. Good: all alike; a device that is '
          'throttled lies below the rest.', 'short',
          (Query('shoal_worker_peak_flops{WHO}', '{{instance}}'),), width=6),
    Panel('Idle: measured and planned', 'Part of all workers\' time in a step that was not spent '
          'computing, beside what the planner predicted. Good: the two lie close; a gap says that '
          'a worker is slower than it was measured, or that tensors arrive late.', 'percentunit',
          (Query('shoal_train_idle_ratio{JOB}', 'measured'),
           Query('shoal_train_predicted_idle_ratio{JOB}',
                 'planned')), high=1, width=6),
    Panel('Where workers spend their time', 'Time of all workers\' compute threads by phase, as '
          'part of the whole. Good: forward and backward fill it. get_wait and push_wait: servers '
          'or the network are slow; step_wait: steps are short, or one worker is late.',
          'percentunit',
          (Query('(sum by (phase) (rate(shoal_worker_phase_seconds_total{WHO}[RATE])) > 0) '
                 '/ on () group_left () sum(rate(shoal_worker_phase_seconds_total{WHO}[RATE]))',
                 '{{phase}}'),), 'stack', high=1, width=6),
    Panel('Computing, by worker', 'Part of its time that each worker spends reading, forward and '
          'backward. Good: all alike. One far below the rest is not given enough; one far above is '
          'a straggler.', 'percentunit',
          (Query(f'sum by (instance) ({BUSY})', '{{instance}}'),), high=1, width=6),
    Panel('Slowest worker against the median', 'Computing time of the busiest worker over that of '
          'the median one. Good: below 1.1. The alert ShoalStraggler fires at 1.3.', 'short',
          (Query(f'max by (shoal_job) (sum by (shoal_job, instance) ({BUSY})) '
                 f'/ quantile by (shoal_job) (0.5, sum by (shoal_job, instance) ({BUSY}))',
                 'busiest / median'),), low=1, decimals=2, width=6),
))

TROUBLE = Row('Trouble', (
    Panel('Checkpoints', 'How long they take, and how old the newest is. Good: durations far below '
          'the interval, an age that saws between zero and the interval.', 's',
          (Query('histogram_quantile(0.99, sum by (le) '
                 '(increase(shoal_checkpoint_duration_seconds_bucket{JOB}[$__range])))',
                 'duration, p99'),
           Query(f'time() - {LAST_CHECKPOINT}', 'age'))),
    Panel('Attempts that came to nothing', 'Attempts dropped whole, those that a worker could not '
          'finish, steps not finite or skipped, and reports that came late, in five minutes. '
          'Good: zero; each dropped attempt is a step that was run again.',
          'short',
          (Query('increase(shoal_train_dropped_attempts_total{JOB}[5m])', 'dropped'),
           Query('sum(increase(shoal_worker_failed_steps_total{WHO}[5m]))', 'failed at a worker'),
           Query('increase(shoal_train_nonfinite_steps_total{JOB}[5m])', 'not finite'),
           Query('increase(shoal_train_skipped_steps_total{JOB}[5m])', 'skipped'),
           Query('increase(shoal_coordinator_late_reports_total{JOB}[5m])', 'late reports'))),
    Panel('Workers that come and go', 'Workers that joined the job or left it while it trained, '
          'and packs that others took over from those that left, in five minutes. Good: as you '
          'wish; each costs the packs in hand and no step.', 'short',
          (Query('increase(shoal_train_workers_joined_total{JOB}[5m])', 'joined'),
           Query('increase(shoal_train_workers_lost_total{JOB}[5m])', 'left or lost'),
           Query('increase(shoal_train_packs_taken_back_total{JOB}[5m])', 'packs taken over'))),
    Panel('State on its way between servers', 'Bytes that moved when servers were added or taken '
          'away while the job trained, in five minutes, and those that are left. Good: as you '
          'wish, each byte once, and what is left falls to zero.', 'bytes',
          (Query('increase(shoal_move_bytes_total{JOB}[5m])', 'moved'),
           Query('shoal_move_left_bytes{JOB}', 'left'),
           Query('increase(shoal_replicated_bytes_total{JOB}[5m])', 'gradients to backups'))),
    Panel('Partitions short of replicas', 'Partitions that fewer servers have than '
          'service.replicas says. Good: zero; above it for long, the next loss may cost steps.',
          'short', (Query('shoal_underreplicated_partitions{JOB}', 'partitions'),)),
    Panel('Pauses while state moves', 'How long steps waited for it, and moves that were given up '
          'in five minutes. Good: pauses of a step or less, none given up.', 's',
          (Query('histogram_quantile(0.99, sum by (le) '
                 '(increase(shoal_move_pause_seconds_bucket{JOB}[$__range])))', 'pause, p99'),
           Query('increase(shoal_move_rollbacks_total{JOB}[5m])', 'given up'))),
))

BOARD = Board('training', 'Shoal: training',
              'Is it learning, how fast, and what holds it up?',
              (NOW, LEARNING, SPEED, TROUBLE))
