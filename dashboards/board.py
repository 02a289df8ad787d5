"""What a board consists of, and how Grafana writes it down.

Queries are PromQL with three words of our own: JOB stands for the matcher of the chosen jobs, WHO
for that of jobs and processes, RATE for the window of rates.
"""

import dataclasses

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat
from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model

WORDS = {
    'JOB': 'shoal_job=~"$shoal_job"',
    'WHO': 'shoal_job=~"$shoal_job", instance=~"$instance"',
    'RATE': '$__rate_interval',
}
DATASOURCE = model.DataSourceRef(type_val='prometheus', uid='${datasource}')
WIDTH = 24  # columns of Grafana's grid


@dataclasses.dataclass(frozen=True)
class Query:
    expr: str
    legend: str  # what a line is called; {{label}} stands for the label's value


@dataclasses.dataclass(frozen=True)
class Panel:
    title: str
    description: str  # what it shows, and what good looks like
    unit: str  # of Grafana's: s, bytes, Bps, percentunit, short, ...
    queries: tuple
    kind: str = 'lines'  # or stack, number, bars
    width: int = 8
    log: bool = False
    low: float | None = 0
    high: float | None = None
    levels: tuple = ()  # (from, colour) of a number, ascending; green below
    decimals: int | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    title: str
    panels: tuple
    collapsed: bool = False  # for what few have: shown on demand


@dataclasses.dataclass(frozen=True)
class Board:
    name: str  # of its file
    title: str
    description: str
    rows: tuple


def quantiles(metric, by, pairs):
    """Queries of a histogram's quantiles."""
    name = '{{' + by + '}} ' if by else ''
    labels = f'{by}, le' if by else 'le'
    return tuple(
        Query(f'histogram_quantile({quantile}, sum by ({labels}) (rate({metric}[RATE])))',
              f'{name}{title}') for quantile, title in pairs)


def expand(expr):
    for word, text in WORDS.items():
        expr = expr.replace(word, text)
    return expr


def thresholds(levels):
    steps = [model.Threshold(value=None, color='green')]
    steps += [model.Threshold(value=value, color=color) for value, color in levels]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def reduce_to_last():
    return common.ReduceDataOptions().calcs(['lastNotNull']).values(False)


def number(panel):
    built = stat.Panel().reduce_options(reduce_to_last()).height(4)
    built.graph_mode(common_model.BigValueGraphMode.AREA)
    built.color_mode(common_model.BigValueColorMode.VALUE)
    built.text_mode(common_model.BigValueTextMode.AUTO)
    return built.thresholds(thresholds(panel.levels))


def bars(panel):
    built = bargauge.Panel().reduce_options(reduce_to_last()).height(8)
    built.orientation(common_model.VizOrientation.HORIZONTAL)
    return built.thresholds(thresholds(panel.levels))


def lines(panel):
    built = timeseries.Panel().height(8).line_width(1)
    built.show_points(common_model.VisibilityMode.NEVER)
    legend = common.VizLegendOptions().show_legend(True)
    built.legend(legend.display_mode(common_model.LegendDisplayMode.LIST)
                 .placement(common_model.LegendPlacement.BOTTOM).calcs([]))
    built.tooltip(common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.MULTI)
                  .sort(common_model.SortOrder.DESCENDING))
    if panel.log:
        built.scale_distribution(common.ScaleDistributionConfig()
                                 .type(common_model.ScaleDistribution.LOG).log(10))
    if panel.kind == 'stack':
        built.stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL))
        built.fill_opacity(60)
    return built


def build_panel(panel):
    make = {'number': number, 'bars': bars, 'lines': lines, 'stack': lines}[panel.kind]
    built = make(panel).title(panel.title).description(panel.description).unit(panel.unit)
    built.datasource(DATASOURCE).span(panel.width)
    if panel.decimals is not None:
        built.decimals(panel.decimals)
    if panel.low is not None and not panel.log:
        built.min(panel.low)
    if panel.high is not None:
        built.max(panel.high)
    for letter, query in zip('ABCDEFGH', panel.queries, strict=False):
        built.with_target(prometheus.Dataquery().expr(expand(query.expr))
                          .legend_format(query.legend).ref_id(letter).range())
    return built


def variables():
    source = dashboard.DatasourceVariable('datasource').label('Data source').type('prometheus')
    job = (dashboard.QueryVariable('shoal_job').label('Job').datasource(DATASOURCE)
           .query('label_values(shoal_build_info, shoal_job)'))
    who = (dashboard.QueryVariable('instance').label('Process').datasource(DATASOURCE)
           .query('label_values(shoal_build_info{shoal_job=~"$shoal_job"}, instance)'))
    for variable in (job, who):
        variable.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        variable.sort(model.VariableSort.NATURAL_ASC)
        variable.multi(True).include_all(True).all_value('.+')
        variable.current(model.VariableOption(text='All', value='$__all'))
    return [source, job, who]


def annotation(name, color, expr):
    target = dashboard.AnnotationQuery().name(name).datasource(DATASOURCE)
    return target.enable(True).icon_color(color).expr(expand(expr))


# Written over every panel: what explains a step in a line.
ANNOTATIONS = (
    ('Checkpoint', 'blue',
     'changes(shoal_checkpoint_last_success_timestamp_seconds{JOB}[RATE]) > 0'),
    ('Member lost', 'red',
     'increase(shoal_coordinator_members_lost_total{JOB}[RATE]) > 0'),
)


def build(board):
    """Returns the board as Grafana's JSON has it, a dictionary."""
    built = dashboard.Dashboard(board.title).uid(f'shoal-{board.name}').tags(['shoal'])
    built.description(board.description).readonly().refresh('10s').time('now-1h', 'now')
    built.timezone('browser').tooltip(model.DashboardCursorSync.CROSSHAIR)
    built.variables(variables())
    built.annotations([annotation(*each) for each in ANNOTATIONS])
    built.link(dashboard.DashboardLink('Shoal').type(model.DashboardLinkType.DASHBOARDS)
               .tags(['shoal']).as_dropdown(False).include_vars(True).keep_time(True))
    for row in board.rows:
        header = dashboard.Row(row.title).collapsed(row.collapsed)
        if row.collapsed:
            for panel in row.panels:
                header.with_panel(build_panel(panel))
        built.with_row(header)
        if not row.collapsed:
            for panel in row.panels:
                built.with_panel(build_panel(panel))
    return built.build()
